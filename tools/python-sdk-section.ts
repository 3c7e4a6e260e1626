import {
  PYTHON_SDK_VERSION,
  pythonSdk,
  type SdkMethod,
  sdkMethodWorks,
  sdkRefusal,
} from "../packages/api/src/python-sdk.ts";

/** What its caller sees of a method that is not built. */
function seen(method: SdkMethod): string {
  const [code, text] = sdkRefusal(method);
  const needs = method.missing === undefined ? "" : ` (needs ${method.missing})`;
  return `${code}, "… ${text} …"${needs}`;
}

function row(className: string, methods: readonly (readonly [name: string, method: SdkMethod])[]): string {
  const short = ([name]: readonly [string, SdkMethod]): string => `\`${name.slice(className.length + 1)}\``;
  const works = methods.filter(([, method]) => sdkMethodWorks(method)).map(short);
  const refusals = Map.groupBy(
    methods.filter(([, method]) => !sdkMethodWorks(method)),
    ([, method]) => seen(method),
  );
  const missing = [...refusals].map(([text, these]) => `${these.map(short).join(", ")}: ${text}`);
  return `| \`${className}\` | ${works.join(", ") || "–"} | ${missing.join("<br>") || "–"} |`;
}

/** The part of the compatibility page about the official Python package. */
export function pythonSdkSection(): string {
  const classes = Map.groupBy(Object.entries(pythonSdk), ([name]) => name.split(".")[0]!);
  return `
## The official Python package

\`openshell\` ${PYTHON_SDK_VERSION} works unmodified and finds the embedded gateway by itself; [python-sdk.md](python-sdk.md) shows how.
A test runs it against a gateway: it compares this table with the package's public methods and calls every one of them.

| Class | Works | Not built yet, and what its caller sees |
|---|---|---|
${[...classes].map(([name, methods]) => row(name, methods)).join("\n")}

What is reached through the package's generated stubs (providers, watch, logs, interactive exec, policies) follows the
table of RPCs above.
`;
}
