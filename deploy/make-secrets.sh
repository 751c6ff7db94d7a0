#!/bin/sh
# The secrets of one fleet, as new files in a folder: a hop secret, an API key, and certificates for
# both ends of a hop. compose.secure.yaml mounts them; for Kubernetes see docs/deploy.md.
set -eu
folder=${1:?usage: deploy/make-secrets.sh FOLDER}
mkdir -p "$folder"
cd "$folder"
if [ -n "$(ls -A)" ]; then
    echo "$folder is not empty: it may hold the secrets of a fleet" >&2
    exit 1
fi
chmod 700 .

random() {
    openssl rand -hex 24
}

key() {
    openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$1.key" 2>/dev/null
}

# certificate NAME: a key and a certificate for the host NAME.triptych
certificate() {
    key "$1"
    openssl req -new -key "$1.key" -subj "/CN=$1.triptych" -out request.pem
    printf 'subjectAltName=DNS:%s\nauthorityKeyIdentifier=keyid\n' "$1.triptych" > names
    openssl x509 -req -in request.pem -CA ca.pem -CAkey ca.key -set_serial "0x$(openssl rand -hex 8)" \
        -days 825 -extfile names -out "$1.pem" 2>/dev/null
    rm request.pem names
}

random > hop-secret
echo "sk-$(random) first" > api-keys
key ca
openssl req -x509 -new -key ca.key -subj "/CN=triptych fleet" -days 3650 \
    -addext keyUsage=critical,keyCertSign,cRLSign -out ca.pem
certificate panel
certificate gateway
# compose mounts them with the owner and mode that they have here: its containers are user 10001
chmod 644 ./*
chmod 600 ca.key
