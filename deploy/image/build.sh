#!/usr/bin/env bash
# build.sh [ARCH] [FILE] builds the image of cmd/sluice for amd64 or arm64, as the archive FILE
# (sluice-ARCH.tar). It needs Go and GNU tar, but no daemon, no registry and no other image:
#
#   docker load -i sluice-amd64.tar        podman load -i sluice-amd64.tar
#   skopeo copy oci-archive:sluice-amd64.tar docker://registry.example/sluice
#
# The image has one file to run, the static binary, and the certificates of the authorities that
# rediss:// needs: those of CA_FILE, or of this machine, if there are any. The same commit, Go and
# certificates give the same archive to the byte: all times in it are the commit's.
set -euo pipefail
arch=${1:-amd64}
case $arch in amd64 | arm64) ;; *) echo "usage: build.sh [amd64|arm64] [FILE]" >&2 && exit 2 ;; esac
file=$(realpath -m "${2:-sluice-$arch.tar}")
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
authorities=${CA_FILE:-/etc/ssl/certs/ca-certificates.crt}
epoch=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
temp=$(mktemp -d)
trap 'rm -rf "$temp"' EXIT

# pack FOLDER prints an archive of a folder that depends on its names and contents only.
pack() { tar -C "$1" --sort=name --mtime="@$epoch" --owner=0 --group=0 --numeric-owner --format=ustar -cf - .; }

# digest FILE prints the SHA-256 of a file.
digest() { sha256sum "$1" | cut -d ' ' -f 1; }

# keep FILE moves a file into the image, and prints its digest, which is its name there.
keep() {
  local name
  name=$(digest "$1")
  mv "$1" "$temp/image/blobs/sha256/$name"
  echo "$name"
}

# Go stamps the commit into the binary, "sluice version" prints it.
mkdir -p "$temp/rootfs/etc/ssl/certs" "$temp/image/blobs/sha256"
CGO_ENABLED=0 GOOS=linux GOARCH=$arch go build -C cmd/sluice -buildvcs=auto -trimpath -ldflags='-s -w -buildid=' -o "$temp/rootfs/sluice" .
version=$(go version -m "$temp/rootfs/sluice" | awk '$1 == "mod" { print $3 }')
if [[ -r $authorities ]]; then
  cp "$authorities" "$temp/rootfs/etc/ssl/certs/ca-certificates.crt"
else
  echo "no certificates in $authorities: rediss:// will need --tls-ca" >&2
fi
chmod -R u=rwX,go=rX "$temp/rootfs" # whatever the umask is

pack "$temp/rootfs" >"$temp/layer"
layer_size=$(stat -c %s "$temp/layer")
layer=$(keep "$temp/layer")
created=$(date -u -d "@$epoch" +%Y-%m-%dT%H:%M:%SZ)
# 65532 is the user "nonroot" of most images without a shell. A number needs no /etc/passwd.
cat >"$temp/config" <<JSON
{"created":"$created","architecture":"$arch","os":"linux","config":{"User":"65532:65532","Entrypoint":["/sluice"],"WorkingDir":"/","Labels":{"org.opencontainers.image.title":"sluice","org.opencontainers.image.version":"$version","org.opencontainers.image.source":"https://github.com/sluice-go/sluice","org.opencontainers.image.licenses":"MIT"}},"rootfs":{"type":"layers","diff_ids":["sha256:$layer"]},"history":[{"created":"$created","created_by":"deploy/image/build.sh"}]}
JSON
config_size=$(stat -c %s "$temp/config")
config=$(keep "$temp/config")
cat >"$temp/manifest" <<JSON
{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"sha256:$config","size":$config_size},"layers":[{"mediaType":"application/vnd.oci.image.layer.v1.tar","digest":"sha256:$layer","size":$layer_size}]}
JSON
manifest_size=$(stat -c %s "$temp/manifest")
manifest=$(keep "$temp/manifest")

# Two tables of contents of the same files: index.json is the OCI layout's, manifest.json the one
# that "docker load" has read since before there was an OCI layout.
cat >"$temp/image/index.json" <<JSON
{"schemaVersion":2,"manifests":[{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"sha256:$manifest","size":$manifest_size,"platform":{"architecture":"$arch","os":"linux"},"annotations":{"io.containerd.image.name":"docker.io/library/sluice:latest","org.opencontainers.image.ref.name":"latest"}}]}
JSON
echo '{"imageLayoutVersion":"1.0.0"}' >"$temp/image/oci-layout"
echo "[{\"Config\":\"blobs/sha256/$config\",\"RepoTags\":[\"sluice:latest\"],\"Layers\":[\"blobs/sha256/$layer\"]}]" >"$temp/image/manifest.json"
chmod -R u=rwX,go=rX "$temp/image"
pack "$temp/image" >"$file"
echo "$file: sluice:latest $version linux/$arch sha256:$manifest"
