#!/usr/bin/env bash
# Writes docker/.env, with credentials made now, for docker/compose.yaml and for runs against it. Keeps one that is there.
set -euo pipefail
umask 077
file=$(dirname "$0")/.env
if [ -e "$file" ]; then
  echo "$file is there already; remove it for new credentials (the volumes' data go with the old ones)"
  exit 0
fi
secret() { od -An -N"$1" -tx1 /dev/urandom | tr -d ' \n'; }
cat >"$file" <<END
AWS_ACCESS_KEY_ID=grpo$(secret 8)
AWS_SECRET_ACCESS_KEY=$(secret 24)
AWS_DEFAULT_REGION=us-east-1
AWS_ENDPOINT_URL=http://127.0.0.1:8333
MLFLOW_TRACKING_URI=http://127.0.0.1:5000
GRPO_STORE=s3://artifacts/grpo
POSTGRES_PASSWORD=$(secret 24)
END
echo "wrote $file"
