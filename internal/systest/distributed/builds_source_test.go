package distributed

import (
	"archive/zip"
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/systest"
)

// The folders of the client and of the operator's tool, in the module.
const (
	client = "internal/systest/distributed/client"
	tool   = "cmd/sluice"
)

// before is the commit of the build before.
//
//go:embed before.txt
var before string

// commitBefore returns the commit that before.txt names, on the line that is no comment.
func commitBefore(t *testing.T) string {
	t.Helper()
	for line := range strings.Lines(before) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			return line
		}
	}
	t.Fatal("before.txt names no commit")
	return ""
}

// compile compiles a program of the module in a folder, and returns its path. It has no race
// detector: one program is to be compiled in a moment, from the cache, and what it is for is what
// the server is told.
func compile(t *testing.T, module, program string, flags ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), filepath.Base(program))
	// With "trimpath" what was compiled in another temporary folder is used again. With "vcs" the
	// folder had to be a repository.
	build := exec.CommandContext(t.Context(), "go", append([]string{"build", "-C", program, "-trimpath", "-buildvcs=false", "-o", path}, flags...)...)
	build.Dir = module
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return path
}

// sourceBefore returns a folder with the source of the build before and the client of now.
func sourceBefore(t *testing.T) string {
	t.Helper()
	module, commit := t.TempDir(), commitBefore(t)
	here := systest.Root(t)
	if _, err := git(t.Context(), here, "cat-file", "-e", commit+"^{commit}"); err != nil {
		withoutHistory(t, commit, err)
	}
	// Not "git worktree": it would leave a note of the folder in the repository if the test is
	// killed.
	source, err := git(t.Context(), here, "archive", "--format=zip", commit)
	require.NoError(t, err)
	files, err := zip.NewReader(bytes.NewReader(source), int64(len(source)))
	require.NoError(t, err)
	require.NoError(t, os.CopyFS(module, files))
	require.NoError(t, os.RemoveAll(filepath.Join(module, client)))
	require.NoError(t, os.CopyFS(filepath.Join(module, client), os.DirFS(filepath.Join(here, client))))
	return module
}

// git runs git in a folder, and returns what it prints.
func git(ctx context.Context, folder string, args ...string) ([]byte, error) {
	out, err := exec.CommandContext(ctx, "git", append([]string{"-C", folder}, args...)...).Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = fmt.Errorf("%w: %s", err, exit.Stderr)
	}
	return out, err
}

// withoutHistory ends a test that does not find the build before: skipped by hand, failed by CI.
func withoutHistory(t *testing.T, commit string, err error) {
	t.Helper()
	why := fmt.Sprintf("this needs git and a clone with its history (git fetch --unshallow), to find the commit %s: %v", commit, err)
	if os.Getenv("CI") == "true" {
		t.Fatal(why)
	}
	t.Skip(why)
}
