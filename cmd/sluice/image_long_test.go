//go:build long

package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/redistest"
)

// unpacked returns the files of a tar archive by name, and checks that they are root's and that
// others may read them.
func unpacked(t *testing.T, archive io.Reader) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	for r := tar.NewReader(archive); ; {
		h, err := r.Next()
		if err == io.EOF { //nolint:errorlint // the reader returns it as it is
			return files
		}
		require.NoError(t, err)
		require.Zero(t, h.Uid+h.Gid, h.Name)
		require.NotZero(t, h.Mode&0o004, h.Name)
		if h.Typeflag != tar.TypeReg {
			continue
		}
		content, err := io.ReadAll(r)
		require.NoError(t, err)
		files[strings.TrimPrefix(h.Name, "./")] = content
	}
}

// blob returns the content with a digest, of an archive with an OCI layout, and checks the digest.
func blob(t *testing.T, files map[string][]byte, digest string) []byte {
	t.Helper()
	content, found := files["blobs/sha256/"+strings.TrimPrefix(digest, "sha256:")]
	require.True(t, found, digest)
	sum := sha256.Sum256(content)
	require.Equal(t, digest, "sha256:"+hex.EncodeToString(sum[:]))
	return content
}

// descriptor names a blob.
type descriptor struct {
	Digest string
	Size   int
}

// TestDeploy_TheImageIsAStaticBinary builds the image twice, without a daemon or a registry: the
// archives are the same to the byte, both tables of contents name the same files, and what is in it
// runs.
func TestDeploy_TheImageIsAStaticBinary(t *testing.T) {
	t.Parallel()
	redistest.NotShort(t)
	build := func() []byte {
		path := filepath.Join(t.TempDir(), "image.tar")
		out, err := exec.CommandContext(t.Context(), filepath.Join(repository, "deploy/image/build.sh"), runtime.GOARCH, path).CombinedOutput()
		require.NoError(t, err, "%s", out)
		archive, err := os.ReadFile(path) //nolint:gosec // of this test
		require.NoError(t, err)
		return archive
	}
	archive := build()
	require.True(t, bytes.Equal(archive, build()), "the same input gives another archive")
	files := unpacked(t, bytes.NewReader(archive))

	var index struct{ Manifests []descriptor }
	require.NoError(t, json.Unmarshal(files["index.json"], &index))
	var manifest struct {
		Config descriptor
		Layers []descriptor
	}
	require.NoError(t, json.Unmarshal(blob(t, files, index.Manifests[0].Digest), &manifest))
	require.Len(t, manifest.Layers, 1)
	var old []struct {
		Config           string
		RepoTags, Layers []string
	}
	require.NoError(t, json.Unmarshal(files["manifest.json"], &old))
	require.Equal(t, strings.Replace(manifest.Config.Digest, "sha256:", "blobs/sha256/", 1), old[0].Config)
	require.Equal(t, []string{strings.Replace(manifest.Layers[0].Digest, "sha256:", "blobs/sha256/", 1)}, old[0].Layers)

	var config struct {
		Architecture string
		Config       struct {
			User       string
			Entrypoint []string
		}
		RootFS struct {
			DiffIDs []string `json:"diff_ids"`
		}
	}
	text := blob(t, files, manifest.Config.Digest)
	require.Len(t, text, manifest.Config.Size)
	require.NoError(t, json.Unmarshal(text, &config))
	require.Equal(t, runtime.GOARCH, config.Architecture)
	require.Equal(t, "65532:65532", config.Config.User)
	require.Equal(t, []string{manifest.Layers[0].Digest}, config.RootFS.DiffIDs)

	layer := blob(t, files, manifest.Layers[0].Digest)
	require.Len(t, layer, manifest.Layers[0].Size)
	root := unpacked(t, bytes.NewReader(layer))
	checkBinary(t, root[strings.TrimPrefix(config.Config.Entrypoint[0], "/")], layer)
	if _, err := os.Stat("/etc/ssl/certs/ca-certificates.crt"); err == nil {
		require.Contains(t, string(root["etc/ssl/certs/ca-certificates.crt"]), "BEGIN CERTIFICATE")
	}
}

// checkBinary checks that a program needs no file beside it, and runs it as a layer has it. tar writes
// the file: a program that this process has written could not be run while another test starts one.
func checkBinary(t *testing.T, content, layer []byte) {
	t.Helper()
	binary, err := elf.NewFile(bytes.NewReader(content))
	require.NoError(t, err)
	libraries, err := binary.ImportedLibraries()
	require.NoError(t, err)
	require.Empty(t, libraries)
	for _, p := range binary.Progs {
		require.NotEqual(t, elf.PT_INTERP, p.Type, "it needs a loader")
	}
	root := t.TempDir()
	unpack := exec.CommandContext(t.Context(), "tar", "-C", root, "-xf", "-")
	unpack.Stdin = bytes.NewReader(layer)
	out, err := unpack.CombinedOutput()
	require.NoError(t, err, "%s", out)
	c := exec.CommandContext(t.Context(), filepath.Join(root, "sluice"), "version") //nolint:gosec // of this test
	c.Env = []string{}
	out, err = c.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.NotEmpty(t, strings.TrimSpace(string(out)))
}

// TestDeploy_TheImageIsForTwoArchitectures: build.sh refuses others before it builds.
func TestDeploy_TheImageIsForTwoArchitectures(t *testing.T) {
	t.Parallel()
	out, err := exec.CommandContext(t.Context(), filepath.Join(repository, "deploy/image/build.sh"), "sparc").CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), "amd64|arm64")
}
