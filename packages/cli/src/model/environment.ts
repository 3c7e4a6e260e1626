import { quote, usageError } from "../errors.ts";

const NAME = /^[A-Za-z_][A-Za-z0-9_]*$/;

/** Refuses what the gateway would refuse, before anything is made. */
export function checkVariables(names: readonly string[]): void {
  for (const name of names) {
    if (!NAME.test(name)) {
      throw usageError(
        `${quote(name)} is no name of a variable`,
        "Use letters, digits and underscores, no digit first",
      );
    }
    if (name.startsWith("OPENSHELL_")) {
      throw usageError(`--env ${name}: names that begin with OPENSHELL_ are reserved`, "Choose another name");
    }
  }
}

const SECRET_WORDS = /(^|_)(TOKEN|SECRET|PASSWORD|CREDENTIALS?|ACCESS_KEY|SECRET_KEY|API_KEY)(_|$)/i;

/** Variables whose name says that their value is a credential: these belong into a provider. */
export function secretLooking(names: readonly string[]): readonly string[] {
  return names.filter((name) => SECRET_WORDS.test(name));
}
