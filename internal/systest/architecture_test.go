// This file checks that the library is built as docs/architecture.md says, and that its goroutines
// and mutexes are documented where they are.

package systest_test

import (
	"cmp"
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/systest"
)

const module = "github.com/sluice-go/sluice"

// anything is what the document says of a package whose imports are not checked.
const anything = "anything"

// document returns a file of the module.
func document(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(systest.Root(t), path))
	require.NoError(t, err)
	return string(text)
}

// goPackage is a package as the go command lists it.
type goPackage struct {
	ImportPath, Dir string
	Imports         []string
}

// name is "root", or the package's path in the module, below internal.
func (p goPackage) name() string { return nameOf(p.ImportPath) }

func nameOf(importPath string) string {
	if importPath == module {
		return "root"
	}
	return strings.TrimPrefix(strings.TrimPrefix(importPath, module+"/"), "internal/")
}

// ours returns what the package imports of the module.
func (p goPackage) ours() []string {
	names := []string{}
	for _, path := range p.Imports {
		if path == module || strings.HasPrefix(path, module+"/") {
			names = append(names, nameOf(path))
		}
	}
	return names
}

func (p goPackage) isForTests() bool {
	return p.name() == "sluicetest" || p.name() == "redistest" || p.name() == "sqltest" || p.name() == "systest" || strings.HasPrefix(p.name(), "systest/") || strings.HasPrefix(p.name(), "test/")
}

// listed is what the go command says of the module's packages, which takes it half a second.
var listed = sync.OnceValues(func() ([]byte, error) {
	return exec.Command("go", "list", "-json=ImportPath,Dir,Imports", module+"/...").Output()
})

func goPackages(t *testing.T) (packages []goPackage) {
	t.Helper()
	out, err := listed()
	require.NoError(t, err)
	for decoder := json.NewDecoder(strings.NewReader(string(out))); decoder.More(); {
		var p goPackage
		require.NoError(t, decoder.Decode(&p))
		packages = append(packages, p)
	}
	require.Greater(t, len(packages), 8)
	return packages
}

// chapter returns a chapter of docs/architecture.md.
func chapter(t *testing.T, title string) string {
	t.Helper()
	_, text, found := strings.Cut(document(t, "docs/architecture.md"), "\n## "+title+"\n")
	require.True(t, found, "no chapter %q", title)
	text, _, _ = strings.Cut(text, "\n## ")
	return text
}

var quoted = regexp.MustCompile("`([^`\n]+)`")

// imports returns what the document's table says that each package imports.
func imports(t *testing.T) map[string][]string {
	t.Helper()
	table := map[string][]string{}
	for line := range strings.Lines(chapter(t, "Packages")) {
		cells := strings.Split(line, "|")
		if len(cells) != 5 || strings.Contains(line, "---") || strings.Contains(cells[1], "package") {
			continue
		}
		name := strings.TrimPrefix(strings.Trim(cells[1], " `"), "internal/")
		if name == "the root" {
			name = "root"
		}
		names := []string{}
		for _, match := range quoted.FindAllStringSubmatch(cells[3], -1) {
			names = append(names, match[1])
		}
		if len(names) == 0 {
			switch strings.TrimSpace(cells[3]) {
			case anything:
				names = append(names, anything)
			case "nothing":
			default:
				t.Errorf("the row of %s says neither packages nor nothing nor anything", name)
			}
		}
		table[name] = names
	}
	return table
}

// TestArchitecture_TableListsEveryImport: each package imports what the table of
// docs/architecture.md says, no more and no less.
func TestArchitecture_TableListsEveryImport(t *testing.T) {
	t.Parallel()
	table, seen := imports(t), map[string]bool{}
	for _, p := range goPackages(t) {
		row, rest, _ := strings.Cut(p.name(), "/")
		if row == "test" { // it has tests only
			require.Contains(t, document(t, "CONTRIBUTING.md"), "`"+p.name()+"`", "nothing says what it tests")
			continue
		}
		if rest != "" && !slices.Equal(table[row], []string{anything}) {
			row = p.name()
		}
		seen[row] = true
		require.Contains(t, table, row, "the table has no row for %s", p.ImportPath)
		if want := table[row]; !slices.Equal(want, []string{anything}) {
			require.ElementsMatch(t, want, p.ours(), "what %s imports", p.ImportPath)
		}
	}
	for name := range table {
		require.True(t, seen[name], "the table has a row for %s, which is no package", name)
	}
}

// TestArchitecture_ChartShowsTheTable: the chart has the arrows of the table.
func TestArchitecture_ChartShowsTheTable(t *testing.T) {
	t.Parallel()
	chart := map[string][]string{}
	for _, arrow := range regexp.MustCompile(`(?m)^ +(\w+) --> (.+)$`).FindAllStringSubmatch(chapter(t, "Packages"), -1) {
		chart[arrow[1]] = strings.Split(arrow[2], " & ")
	}
	for name, want := range imports(t) {
		if !slices.Equal(want, []string{anything}) {
			require.ElementsMatch(t, want, chart[name], "the arrows of %s", name)
		}
		delete(chart, name)
	}
	require.Empty(t, chart, "arrows of what is no package")
}

// TestArchitecture_InternalsDoNotImportTheRoot: only packages for tests know it.
func TestArchitecture_InternalsDoNotImportTheRoot(t *testing.T) {
	t.Parallel()
	for _, p := range goPackages(t) {
		if !p.isForTests() {
			require.NotContains(t, p.Imports, module, "%s imports the root", p.ImportPath)
		}
	}
}

// TestArchitecture_EveryPackageHasAComment: in a file that is no test, if it has one.
func TestArchitecture_EveryPackageHasAComment(t *testing.T) {
	t.Parallel()
	for _, p := range goPackages(t) {
		files, err := filepath.Glob(filepath.Join(p.Dir, "*.go"))
		require.NoError(t, err)
		isTest := func(file string) bool { return strings.HasSuffix(file, "_test.go") }
		if code := slices.DeleteFunc(slices.Clone(files), isTest); len(code) > 0 {
			files = code
		}
		require.True(t, slices.ContainsFunc(files, func(file string) bool {
			parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.PackageClauseOnly|parser.ParseComments)
			require.NoError(t, err)
			return parsed.Doc != nil
		}), "%s has no package comment", p.ImportPath)
	}
}

// TestArchitecture_NamesExist: each function, method and field that docs/architecture.md
// names as `Type.name` or `package.Name` is in the code.
func TestArchitecture_NamesExist(t *testing.T) {
	t.Parallel()
	names := map[string]bool{}
	for _, p := range goPackages(t) {
		if !strings.Contains(p.name(), "systest") {
			declared(t, p.Dir, names)
		}
	}
	found := 0
	for _, match := range regexp.MustCompile("`(\\w+)\\.(\\w+)`").FindAllStringSubmatch(document(t, "docs/architecture.md"), -1) {
		name, owner := match[1]+"."+match[2], match[1]
		switch {
		case slices.Contains([]string{"go", "md", "lua"}, match[2]): // a file
		case slices.Contains([]string{"context", "runtime"}, owner): // the standard library's
		case !names[name]:
			t.Errorf("docs/architecture.md names %s, which does not exist", name)
		default:
			found++
		}
	}
	require.Greater(t, found, 70)
}

// parse returns the Go files in a folder, tests excluded; or the one file.
func parse(t *testing.T, set *token.FileSet, dir string) (parsed []*ast.File) {
	t.Helper()
	files := []string{dir}
	if filepath.Ext(dir) != ".go" {
		var err error
		files, err = filepath.Glob(filepath.Join(dir, "*.go"))
		require.NoError(t, err)
	}
	for _, file := range files {
		if !strings.HasSuffix(file, "_test.go") {
			f, err := parser.ParseFile(set, file, nil, parser.ParseComments)
			require.NoError(t, err)
			parsed = append(parsed, f)
		}
	}
	return parsed
}

// declared adds what the Go files in a folder, or the one file, declare.
func declared(t *testing.T, dir string, names map[string]bool) {
	t.Helper()
	for _, parsed := range parse(t, token.NewFileSet(), dir) {
		for _, declaration := range parsed.Decls {
			switch d := declaration.(type) {
			case *ast.FuncDecl:
				name := functionName(d)
				if d.Recv == nil {
					name = parsed.Name.Name + "." + name
				}
				names[name] = true
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					if s, ok := spec.(*ast.TypeSpec); ok {
						declaredType(parsed.Name.Name, s, names)
					}
				}
			}
		}
	}
}

// declaredType adds a type and, of a struct or an interface, its members.
func declaredType(packageName string, s *ast.TypeSpec, names map[string]bool) {
	names[packageName+"."+s.Name.Name] = true
	var members *ast.FieldList
	switch kind := s.Type.(type) {
	case *ast.StructType:
		members = kind.Fields
	case *ast.InterfaceType:
		members = kind.Methods
	default:
		return
	}
	for _, member := range members.List {
		for _, name := range member.Names {
			names[s.Name.Name+"."+name.Name] = true
		}
	}
}

// typeName is the name of a receiver's type.
func typeName(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return typeName(e.X)
	case *ast.IndexExpr:
		return typeName(e.X)
	case *ast.IndexListExpr: // several type parameters
		return typeName(e.X)
	case *ast.Ident:
		return e.Name
	}
	return ""
}

func functionName(f *ast.FuncDecl) string {
	if f.Recv == nil {
		return f.Name.Name
	}
	return typeName(f.Recv.List[0].Type) + "." + f.Name.Name
}

// TestArchitecture_MutexesSayWhatTheyGuard: the comment beside a mutex, which is a field or a
// variable, has the word "guards".
func TestArchitecture_MutexesSayWhatTheyGuard(t *testing.T) {
	t.Parallel()
	found := 0
	forSources(t, func(s source) {
		ast.Inspect(s.file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncType: // it is passed on
				return false
			case *ast.SelectorExpr:
				if name := types.ExprString(n); name == "sync.Mutex" || name == "sync.RWMutex" {
					found++
					if !strings.Contains(s.beside(n), "guards") {
						t.Errorf("%s: no comment beside the mutex says what it guards", s.at(n))
					}
				}
			}
			return true
		})
	})
	require.Greater(t, found, 20)
}

// TestArchitecture_GoroutinesSayWhatEndsThem: what ends a goroutine, and what waits for it, says
// the comment directly above the place that starts it or, without one, the doc of the function
// there. It has the words "end" and "wait", or "ends" and "waits".
func TestArchitecture_GoroutinesSayWhatEndsThem(t *testing.T) {
	t.Parallel()
	ends, waits := regexp.MustCompile(`\b[Ee]nds?\b`), regexp.MustCompile(`\b[Ww]aits?\b`)
	found := 0
	forSources(t, func(s source) {
		for _, declaration := range s.file.Decls {
			doc := ""
			if f, ok := declaration.(*ast.FuncDecl); ok {
				doc = f.Doc.Text()
			}
			ast.Inspect(declaration, func(n ast.Node) bool {
				if startsGoroutine(n) {
					found++
					if said := cmp.Or(s.beside(n), doc); !ends.MatchString(said) || !waits.MatchString(said) {
						t.Errorf("%s: no comment says what ends the goroutine, and what waits for it", s.at(n))
					}
				}
				return true
			})
		}
	})
	require.Greater(t, found, 20)
}

// startsGoroutine reports whether a node is a go statement, or calls a method Go of a group, or
// background.NewLoop.
func startsGoroutine(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.GoStmt:
		return true
	case *ast.CallExpr:
		called, ok := n.Fun.(*ast.SelectorExpr)
		return ok && (called.Sel.Name == "Go" || called.Sel.Name == "NewLoop")
	}
	return false
}

// source is a file that is no test.
type source struct {
	files *token.FileSet
	file  *ast.File
	code  map[int]bool // the lines on which something begins that is no comment
}

// forSources calls f for each file of the library.
func forSources(t *testing.T, f func(s source)) {
	t.Helper()
	for _, p := range goPackages(t) {
		if p.isForTests() && p.name() != "sluicetest" {
			continue
		}
		files := token.NewFileSet()
		for _, file := range parse(t, files, p.Dir) {
			s := source{files, file, map[int]bool{}}
			ast.Inspect(file, func(n ast.Node) bool {
				switch n.(type) {
				case nil, *ast.CommentGroup, *ast.Comment:
				default:
					s.code[s.line(n.Pos())] = true
				}
				return true
			})
			f(s)
		}
	}
}

func (s source) at(n ast.Node) string { return s.files.Position(n.Pos()).String() }

func (s source) line(at token.Pos) int { return s.files.Position(at).Line }

// beside returns the comments that end directly above the line where a node begins, or stand behind
// it on that line.
func (s source) beside(n ast.Node) (text string) {
	at := s.line(n.Pos())
	for _, c := range s.file.Comments {
		if begin := s.line(c.Pos()); begin == at || s.line(c.End()) == at-1 && !s.code[begin] {
			text += c.Text()
		}
	}
	return text
}

// TestArchitecture_IsLinked: a reader finds the document.
func TestArchitecture_IsLinked(t *testing.T) {
	t.Parallel()
	for _, from := range []string{"CONTRIBUTING.md", "README.md"} {
		require.Contains(t, document(t, from), "](docs/architecture.md)", "%s does not link it", from)
	}
}
