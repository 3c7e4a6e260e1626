/** Variables of an image that are taken over, and characters of one. */
const MAX_VARIABLES = 128;
const MAX_VALUE = 8_192;
/** What an image may choose although the sandbox has a default. */
const CHOSEN_BY_IMAGE: ReadonlySet<string> = new Set(["LANG"]);

/** The sandbox's own variables over the image's; the image's folders come first in PATH. */
export function imageEnvironment(
  declared: readonly string[],
  own: Readonly<Record<string, string>>,
): Readonly<Record<string, string>> {
  const merged: Record<string, string> = {};
  let path = "";
  for (const entry of declared.slice(0, MAX_VARIABLES)) {
    const equals = entry.indexOf("=");
    const name = entry.slice(0, Math.max(0, equals));
    const value = entry.slice(equals + 1);
    if (!/^[A-Za-z_][A-Za-z0-9_]*$/.test(name) || name.startsWith("OPENSHELL_")) continue;
    if (value.length > MAX_VALUE || /[\0\r\n]/.test(value)) continue;
    if (name === "PATH") path = value;
    else merged[name] = value;
  }
  for (const [name, value] of Object.entries(own)) {
    if (!(CHOSEN_BY_IMAGE.has(name) && merged[name] !== undefined)) merged[name] = value;
  }
  const folders = [...path.split(":").filter((folder) => folder.startsWith("/")), ...(own["PATH"] ?? "").split(":")];
  merged["PATH"] = [...new Set(folders)].join(":");
  return merged;
}
