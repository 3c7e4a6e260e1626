import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { join } from "node:path";

/** A key and a certificate that it signed itself, made in `folder`. */
export function ownCertificate(folder: string): { readonly key: string; readonly certificate: string } {
  const key = join(folder, "key.pem");
  const certificate = join(folder, "certificate.pem");
  const kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=x", "-days", "1"];
  execFileSync("openssl", ["req", "-x509", ...kind, "-keyout", key, "-out", certificate], { stdio: "ignore" });
  return { key: readFileSync(key, "utf8"), certificate: readFileSync(certificate, "utf8") };
}
