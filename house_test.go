package sluice_test

import (
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/systest"
)

// filesOf returns the texts of the repository's files whose names end like this, by path.
func filesOf(t *testing.T, ending string) map[string]string {
	t.Helper()
	texts := map[string]string{}
	require.NoError(t, filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.Name() == "node_modules" { // what npm has installed for a benchmark
			return fs.SkipDir
		}
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, ending) {
			return err
		}
		text, err := os.ReadFile(path)
		texts[filepath.ToSlash(path)] = string(text)
		return err
	}))
	return texts
}

// TestHouse_GuaranteesNameTests: each test that docs/guarantees-tests.md or another document names
// exists, in some package of the repository.
func TestHouse_GuaranteesNameTests(t *testing.T) {
	t.Parallel()
	declared := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark|Example)\w*)\(`)
	tests := map[string]bool{}
	for _, text := range filesOf(t, "_test.go") {
		for _, test := range declared.FindAllStringSubmatch(text, -1) {
			tests[test[1]] = true
		}
	}
	named := regexp.MustCompile("`((?:Test|Fuzz|Example)\\w+)`")
	for path, text := range filesOf(t, ".md") {
		names := named.FindAllStringSubmatch(text, -1)
		if path == "docs/guarantees-tests.md" {
			require.Greater(t, len(names), 150)
		}
		for _, name := range names {
			isBeginning := strings.HasSuffix(name[1], "_") && slices.ContainsFunc(slices.Collect(maps.Keys(tests)), // of several
				func(test string) bool { return strings.HasPrefix(test, name[1]) })
			if !tests[name[1]] && !isBeginning && name[1] != "Example" {
				t.Errorf("%s names %s, which does not exist", path, name[1])
			}
		}
	}
}

// TestHouse_PromisesHaveTests: each promise of docs/guarantees.md, a paragraph that begins with its
// name, has a row with a test in docs/guarantees-tests.md, in the same chapter and order.
func TestHouse_PromisesHaveTests(t *testing.T) {
	t.Parallel()
	documents, found := filesOf(t, ".md"), 0
	for _, chapter := range []string{"Locks", "Tasks", "Stock", "Groups", "Calls"} {
		namesIn := func(page, pattern string) (names []string) {
			_, text, _ := strings.Cut(documents[page], "\n## "+chapter+"\n")
			text, _, _ = strings.Cut(text, "\n## ")
			for _, match := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
				names = append(names, match[1])
			}
			return names
		}
		promises := namesIn("docs/guarantees.md", `(?m)^\*\*(.+?)\.\*\* `)
		require.NotEmpty(t, promises, chapter)
		require.Equal(t, promises, namesIn("docs/guarantees-tests.md", "(?m)^\\| (.+?) \\| .*`(?:Test|Fuzz)\\w+`.* \\|$"), chapter)
		found += len(promises)
	}
	require.Greater(t, found, 70)
}

// TestHouse_NeitherHalfKnowsTheOther: the files of locks name nothing, not a method or a field
// either, that a file of queues and workers declares, nor the other way round. What both need
// stands in the files that are listed here, which know both.
func TestHouse_NeitherHalfKnowsTheOther(t *testing.T) {
	t.Parallel()
	shared := []string{"doc.go", "errors.go", "options.go", "scripts.go", "check.go"}
	halfOf := func(path string) string {
		switch {
		case slices.Contains(shared, path):
			return ""
		case strings.HasPrefix(path, "lock"):
			return "locks"
		}
		return "queues"
	}
	files, _, info := checkedRoot(t)
	nameOf := func(at token.Pos) string { return filepath.Base(files.Position(at).Filename) }
	found := map[string]int{}
	for identifier, object := range info.Uses {
		from, half := nameOf(identifier.Pos()), halfOf(nameOf(identifier.Pos()))
		if object.Pkg() == nil || object.Pkg().Path() != "." || half == "" {
			continue
		}
		found[half]++
		if other := halfOf(nameOf(object.Pos())); other != "" && other != half {
			t.Errorf("%s names %s, which %s declares", from, object.Name(), nameOf(object.Pos()))
		}
	}
	require.Greater(t, found["locks"], 300)
	require.Greater(t, found["queues"], 1000)
}

// TestHouse_NoLocalHasTheNameOfAnother: a name that a local variable shadows is too short for a
// whole package.
func TestHouse_NoLocalHasTheNameOfAnother(t *testing.T) {
	t.Parallel()
	files, root, info := checkedRoot(t)
	for identifier, object := range info.Defs {
		v, isVariable := object.(*types.Var)
		if isVariable && !v.IsField() && v.Parent() != root.Scope() && root.Scope().Lookup(v.Name()) != nil {
			t.Errorf("%s: %s is the name of something else in the package", files.Position(identifier.Pos()), v.Name())
		}
	}
	require.Greater(t, len(info.Defs), 1000)
}

// checkedRoot returns the root package as the type checker sees it.
func checkedRoot(t *testing.T) (*token.FileSet, *types.Package, *types.Info) {
	t.Helper()
	listed, err := exec.CommandContext(t.Context(), "go", "list", "-export", "-deps", "-f", "{{.ImportPath}}={{.Export}}", ".").Output()
	require.NoError(t, err)
	compiled := map[string]string{}
	for line := range strings.Lines(string(listed)) {
		path, file, _ := strings.Cut(strings.TrimSpace(line), "=")
		compiled[path] = file
	}
	files := token.NewFileSet()
	importer := importer.ForCompiler(files, "gc", func(path string) (io.ReadCloser, error) { return os.Open(compiled[path]) })
	paths, err := filepath.Glob("*.go")
	require.NoError(t, err)
	var parsed []*ast.File
	for _, path := range paths {
		if !strings.HasSuffix(path, "_test.go") {
			file, err := parser.ParseFile(files, path, nil, 0)
			require.NoError(t, err)
			parsed = append(parsed, file)
		}
	}
	info := &types.Info{Uses: map[*ast.Ident]types.Object{}, Defs: map[*ast.Ident]types.Object{}}
	root, err := (&types.Config{Importer: importer}).Check(".", files, parsed, info)
	require.NoError(t, err)
	return files, root, info
}

// TestHouse_LinksLead: each link of a document to a file of the repository leads there, and to a
// heading that it has.
func TestHouse_LinksLead(t *testing.T) {
	t.Parallel()
	documents, found := filesOf(t, ".md"), 0
	link := regexp.MustCompile(`\]\(([^()\s#]*)(?:#([^()\s]+))?\)`)
	for from, text := range documents {
		for _, l := range link.FindAllStringSubmatch(text, -1) {
			if strings.Contains(l[1], "://") {
				continue
			}
			found++
			to := from
			if l[1] != "" {
				to = filepath.ToSlash(filepath.Join(filepath.Dir(from), l[1]))
			}
			if _, err := os.Stat(to); err != nil {
				t.Errorf("%s links %s, which does not exist", from, to)
			} else if l[2] != "" && !slices.Contains(systest.Anchors(documents[to]), l[2]) {
				t.Errorf("%s links %s, which has no heading #%s", from, to, l[2])
			}
		}
	}
	require.Greater(t, found, 50)
}

// TestHouse_PagesNameOptionsAndErrors: a user finds each of them in the tables of the pages for
// use, and what each option defaults to in its comment.
func TestHouse_PagesNameOptionsAndErrors(t *testing.T) {
	t.Parallel()
	documents := filesOf(t, ".md")
	pages := documents["docs/locks.md"] + documents["docs/tasks.md"] + documents["docs/errors.md"]
	option := regexp.MustCompile(`(?m)((?:^//.*\n)+)^func (With\w+)\([^)]*\) (?:Lock|Queue)Option \{`)
	failure := regexp.MustCompile(`(?m)^(?:\t(Err\w+) += |type (\w+Error) struct)`)
	options, failures := 0, 0
	sources, err := filepath.Glob("*.go")
	require.NoError(t, err)
	for _, path := range sources {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		for _, o := range option.FindAllStringSubmatch(string(text), -1) {
			options++
			require.True(t, strings.Contains(pages, "`"+o[2]+"`"), "no page names %s", o[2])
			require.Contains(t, strings.ReplaceAll(o[1], "\n// ", " "), "Defaults to ", "the comment of %s", o[2])
		}
		for _, e := range failure.FindAllStringSubmatch(string(text), -1) {
			if name := e[1] + e[2]; token.IsExported(name) {
				failures++
				require.True(t, regexp.MustCompile(`\b`+name+`\b`).MatchString(pages), "no page names %s", name)
			}
		}
	}
	require.Greater(t, options, 19)
	require.Greater(t, failures, 13)
}

// TestHouse_ReadmeNamesTheFloors: the oldest Go and go-redis that go.mod and sluiceotel's go.mod
// name.
func TestHouse_ReadmeNamesTheFloors(t *testing.T) {
	t.Parallel()
	floors := regexp.MustCompile(`from Go (\d+\.\d+) and go-redis (v9\.\d+) on`).FindStringSubmatch(filesOf(t, "README.md")["README.md"])
	require.NotNil(t, floors)
	modules := filesOf(t, "go.mod")
	for _, path := range []string{"go.mod", "sluiceotel/go.mod"} {
		require.Contains(t, modules[path], "\ngo "+floors[1]+".0\n", path)
		require.Contains(t, modules[path], "\tgithub.com/redis/go-redis/v9 "+floors[2]+".0\n", path)
	}
}

func TestMain(m *testing.M) {
	systest.BubbleConnections = 10_000
	systest.Main(m)
}
