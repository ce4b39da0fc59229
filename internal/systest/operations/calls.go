package operations

import (
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// module is the path of the library's package.
const module = "github.com/sluice-go/sluice"

// Importer imports what the package in a folder imports, as it is compiled.
func Importer(t *testing.T, dir string) types.Importer {
	t.Helper()
	list := exec.CommandContext(t.Context(), "go", "list", "-export", "-deps", "-test", "-f", "{{.ImportPath}} {{.Export}}", ".")
	list.Dir = dir
	out, err := list.Output()
	require.NoError(t, err)
	compiled := map[string]string{}
	for line := range strings.Lines(string(out)) {
		path, file, _ := strings.Cut(strings.TrimSpace(line), " ")
		compiled[path] = file
	}
	return importer.ForCompiler(token.NewFileSet(), "gc", func(path string) (io.ReadCloser, error) { return os.Open(compiled[path]) })
}

// RequireCalls requires that the files of a package call each operation, except those for which the
// table has a reason.
func RequireCalls(t *testing.T, pattern string, reason func(Operation) string) {
	t.Helper()
	paths, err := filepath.Glob(pattern)
	require.NoError(t, err)
	var files []*ast.File
	set := token.NewFileSet()
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") && !strings.HasSuffix(pattern, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(set, path, nil, 0)
		require.NoError(t, err)
		files = append(files, file)
	}
	used := map[*ast.Ident]types.Object{}
	config := types.Config{Importer: Importer(t, filepath.Dir(pattern)), Error: func(error) {}} // its tests are a package of their own
	_, _ = config.Check("", set, files, &types.Info{Uses: used})
	called, nameOf := map[string]bool{}, strings.NewReplacer("(", "", "*", "", ")", "", module+".", "")
	for _, o := range used {
		if f, ok := o.(*types.Func); ok {
			called[nameOf.Replace(f.FullName())] = true
		}
	}
	for _, op := range Table {
		switch why := reason(op); {
		case why == "" && !called[op.Name]:
			t.Errorf("nothing here calls %s: have it called, or say in internal/systest/operations/table.go why not", op.Name)
		case why != "" && called[op.Name]:
			t.Errorf("%s is called here; internal/systest/operations/table.go says that it is not: %s", op.Name, why)
		}
	}
}
