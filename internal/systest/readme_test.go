// This file checks what users read first: its Go compiles, and it is short.

package systest_test

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
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

// given is what the snippets of the pages take as given.
const given = `package snippets

import (
	"context"
	"errors"
	"net/http"
	"os/signal"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/sluicetest"
)

var (
	_ = errors.Is
	_ = http.StatusOK
	_ = signal.NotifyContext
	_ = syscall.SIGTERM
	_ = synctest.Test
	_ = sluicetest.New
	_ = time.Second

	rdb               *redis.Client
	locker, elsewhere *sluice.Locker
	lock              *sluice.Lock
	queue             *sluice.Queue
	urgent, bulk      *sluice.Queue
	worker            *sluice.Worker
	mux               sluice.Mux
	e                 sluice.Entry
	err, errBusy      error
	errUnpaid         error
	basket            []string
	w                 http.ResponseWriter
	ordered           bool
	buyer             string
	orders            table
)

type (
	table struct{}
	order struct {
		Paid, Cancelled bool
		Left            time.Duration
	}
)

func (table) Open(ctx context.Context, number, buyer string, payIn time.Duration) (o order, err error) {
	return o, err
}

func sell(context.Context) error                                     { return nil }
func checkOut(context.Context, string) error                         { return nil }
func remind(context.Context, string) error                           { return nil }
func work(context.Context) error                                     { return nil }
func sellAll(context.Context, []string) error                        { return nil }
func cancelUnpaid(context.Context, string) error                     { return nil }
func sendReceipt(context.Context, sluice.Entry) error                { return nil }
func sweep(context.Context, sluice.Entry) error                      { return nil }
func makeReport(context.Context, sluice.Entry) error                 { return nil }
func openOrder(context.Context, string) (o order, err error)          { return o, nil }
func ship(context.Context, string) error                             { return nil }
func sendEmail[T any](context.Context, sluice.Entry, T) error        { return nil }
func logged(next sluice.Handler) sluice.Handler                      { return next }
`

var codeBlock = regexp.MustCompile("(?ms)^```(\\w*)\n(.*?)^```$")

// TestReadme_SnippetsCompile: each piece of Go of the pages for users compiles, if what they take
// as given is there. A name that a snippet declares may be left unused.
func TestReadme_SnippetsCompile(t *testing.T) {
	t.Parallel()
	text, found := given, 0
	for _, page := range []string{"README.md", "README.zh-CN.md", "docs/locks.md", "docs/tasks.md", "docs/errors.md", "docs/testing.md", "docs/from-rabbitmq-rocketmq.md"} { // database.md is about sluicesql, whose examples compile there
		for _, block := range codeBlock.FindAllStringSubmatch(document(t, page), -1) {
			if block[1] != "go" {
				continue
			}
			found++
			text += fmt.Sprintf("\n// of %s\nfunc snippet%d(ctx context.Context, t *testing.T) error {\n%s\n\treturn nil\n}\n", page, found, block[2])
		}
	}
	require.Greater(t, found, 10)
	dir := t.TempDir()
	source, overlay := filepath.Join(dir, "snippets.go"), filepath.Join(dir, "overlay.json")
	require.NoError(t, os.WriteFile(source, []byte(used(t, text)), 0o600))
	virtual := filepath.Join(systest.Root(t), "internal/systest/snippets/snippets.go")
	replace, err := json.Marshal(map[string]map[string]string{"Replace": {virtual: source}})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(overlay, replace, 0o600))
	build := exec.CommandContext(t.Context(), "go", "build", "-overlay", overlay, "./internal/systest/snippets")
	build.Dir = systest.Root(t)
	output, err := build.CombinedOutput()
	require.NoError(t, err, "%s", output)
}

// used has each variable that a snippet declares used, so that the compiler does not mind it.
func used(t *testing.T, text string) string {
	t.Helper()
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, "snippets.go", text, 0)
	require.NoError(t, err)
	uses := map[int]string{}
	ast.Inspect(file, func(n ast.Node) bool {
		block, ok := n.(*ast.BlockStmt)
		if !ok {
			return true
		}
		for _, s := range block.List {
			if declared, ok := s.(*ast.AssignStmt); ok && declared.Tok == token.DEFINE {
				for _, name := range declared.Lhs {
					if id := name.(*ast.Ident); id.Name != "_" {
						uses[files.Position(s.End()).Offset] += "; _ = " + id.Name
					}
				}
			}
		}
		return true
	})
	offsets := make([]int, 0, len(uses))
	for at := range uses {
		offsets = append(offsets, at)
	}
	slices.Sort(offsets)
	for _, at := range slices.Backward(offsets) {
		text = text[:at] + uses[at] + text[at:]
	}
	return text
}

// TestReadme_IsShort: the front door is read in ten minutes.
func TestReadme_IsShort(t *testing.T) {
	t.Parallel()
	require.LessOrEqual(t, len(strings.Fields(document(t, "README.md"))), 1500, "words in README.md")
}
