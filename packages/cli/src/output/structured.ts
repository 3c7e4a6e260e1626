import { Document, visit } from "yaml";

/** What YAML 1.2 wants escaped (https://yaml.org/spec/1.2.2/#51-character-set), and line ends of YAML 1.1. */
const ESCAPED = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u2028\u2029\ufeff\ufffe\uffff]|\p{Surrogate}/u;
const ESCAPED_ALL = new RegExp(ESCAPED, "gu");

/**
 * A plain value as YAML 1.2, block style. In a module of its own: the YAML library is loaded only when asked for. Strings that YAML 1.1
 * readers take for something else (`yes`, `017`, `1:30`) are quoted too, and nothing becomes an alias.
 */
export function toYaml(value: unknown): string {
  const document = new Document(value, { compat: "yaml-1.1", version: "1.2", aliasDuplicateObjects: false });
  visit(document, {
    Scalar: (_key, node) => {
      if (typeof node.value === "string" && ESCAPED.test(node.value)) node.type = "QUOTE_DOUBLE";
    },
  });
  // Such characters are within double quotes only, where an escape means the same.
  return document
    .toString({ lineWidth: 0 })
    .replace(ESCAPED_ALL, (character) => `\\u${character.charCodeAt(0).toString(16).padStart(4, "0")}`);
}
