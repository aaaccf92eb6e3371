-- What is sealed has one layout everywhere: nonce (12 bytes), tag (16), text. Answers had nonce, text, tag, as base64.
ALTER TABLE "idempotent_requests" ALTER COLUMN "body" TYPE BYTEA USING
  substring(decode("body", 'base64') for 12)
  || substring(decode("body", 'base64') from octet_length(decode("body", 'base64')) - 15)
  || substring(decode("body", 'base64') from 13 for octet_length(decode("body", 'base64')) - 28);
