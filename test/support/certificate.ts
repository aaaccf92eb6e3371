/** A self-signed certificate for localhost, created with openssl. */
import { execFileSync } from 'node:child_process';
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

/** Writes PEM files into `dir`. */
export type Certificate = { pem: string; key: string; both: string };

export function makeCertificate(dir: string): Certificate {
  const [pem, key, both] = ['cert.pem', 'key.pem', 'both.pem'].map((name) => join(dir, name)) as [
    string,
    string,
    string,
  ];
  const made = ['-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes'];
  const names = ['-subj', '/CN=localhost', '-addext', 'subjectAltName=DNS:localhost', '-days', '2'];
  execFileSync('openssl', ['req', ...made, ...names, '-keyout', key, '-out', pem], {
    stdio: 'ignore',
  });
  writeFileSync(both, readFileSync(pem, 'utf8') + readFileSync(key, 'utf8'));
  return { pem, key, both };
}
