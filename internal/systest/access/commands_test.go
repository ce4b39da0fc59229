package access

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/keyspace"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/store"
	"github.com/sluice-go/sluice/internal/systest"
)

// What the parts of the rule in docs/operations.md are for, in their order there.
const (
	grantsOfAll = iota
	grantsOfLocks
	grantsOfFences
	grantsOfPermits
	grantsOfQueues
	grantsOfClusters
	grantsOnSentinels
)

// commands picks the commands out of a rule.
func commands(rules ...[]string) (names []string) {
	for _, word := range slices.Concat(rules...) {
		if name, ok := strings.CutPrefix(word, "+"); ok {
			names = append(names, name)
		}
	}
	return names
}

// TestAccess_DocumentedCommands: the commands that docs/operations.md tells an operator to
// grant are those of the scripts and of the Go code, no more and no less, and each
// part of the rule has those of its own half.
func TestAccess_DocumentedCommands(t *testing.T) {
	t.Parallel()
	rules := redistest.Rules(t)
	require.Len(t, rules, grantsOnSentinels+1)

	locks, fences, permits, queues := map[string]bool{}, map[string]bool{}, map[string]bool{}, map[string]bool{}
	require.NoError(t, filepath.WalkDir(filepath.Join(systest.Root(t), "lua"), func(path string, entry fs.DirEntry, err error) error {
		require.NoError(t, err)
		if entry.IsDir() || !strings.HasSuffix(path, ".lua") {
			return nil
		}
		half := queues
		switch name := strings.TrimSuffix(filepath.Base(path), ".lua"); {
		case name == "fence":
			half = fences
		case strings.HasPrefix(name, "permit"):
			half = permits
		case slices.Contains([]string{"acquire", "release", "extend", "inspect", "force", "check_lock", "lock_line", "lock_join"}, name):
			half = locks
		}
		for _, command := range inScript(t, path) {
			if name := filepath.Base(path); (name == "inspect.lua" || name == "force.lua") && strings.HasPrefix(command, "z") && command != "zcard" {
				permits[command] = true // they serve both kinds; a plain lock is no sorted set, but its line is
				continue
			}
			switch name := filepath.Base(path); {
			case name == "release.lua" && command == "decrby":
				fences[command] = true // of KEYS[3]: a lock without fences has none
				continue
			case name == "fence.lua":
				permits[command] = true // they have the clock of it
			}
			half[command] = true
		}
		return nil
	}))
	all := inGo(t)
	require.Contains(t, all, "set") // the bare first try at a lock
	require.Contains(t, all, "evalsha")
	delete(all, "set")
	locks["set"] = true

	for _, name := range []string{"spublish", "ssubscribe", "sunsubscribe", "pubsub|shardnumsub"} { // on a Cluster only
		require.True(t, all[name] || queues[name] || locks[name], name)
		require.Contains(t, commands(rules[grantsOfClusters]), name)
		delete(all, name)
		delete(queues, name)
		delete(locks, name)
	}
	require.Contains(t, commands(rules[grantsOfClusters]), "pubsub|numsub")
	delete(queues, "pubsub|numsub") // asked of sharded channels

	all["publish"] = true // in both halves
	require.ElementsMatch(t, keys(all), commands(rules[grantsOfAll]))
	require.ElementsMatch(t, without(locks, all), commands(rules[grantsOfLocks]))
	require.ElementsMatch(t, without(fences, all, locks), commands(rules[grantsOfFences]))
	require.ElementsMatch(t, without(permits, all, locks), commands(rules[grantsOfPermits]))
	require.ElementsMatch(t, without(queues, all), commands(rules[grantsOfQueues]))
}

// TestAccess_TheTableIsTheDocumentedRule: store.Rights, for which Check asks, is what
// docs/operations.md grants: each part has the same commands, keys and channels.
func TestAccess_TheTableIsTheDocumentedRule(t *testing.T) {
	t.Parallel()
	rules := redistest.Rules(t)
	for part, c := range map[int]struct {
		parts  []store.Part
		main   string
		before []int // whose rights it has, too
	}{
		grantsOfAll:     {[]store.Part{store.All}, "", nil},
		grantsOfLocks:   {[]store.Part{store.All, store.Locks}, "Lock:*", []int{grantsOfAll}},
		grantsOfFences:  {[]store.Part{store.Fences}, "Lock:*", []int{grantsOfAll, grantsOfLocks}},
		grantsOfPermits: {[]store.Part{store.Permits}, "Lock:*", []int{grantsOfAll, grantsOfLocks}},
		grantsOfQueues:  {[]store.Part{store.All, store.Queues, store.Operators}, "Queue:*", []int{grantsOfAll}},
	} {
		words := map[string]bool{}
		for _, right := range store.Rights {
			if !slices.Contains(c.parts, right.Part) {
				continue
			}
			for command := range strings.SplitSeq(right.Commands, "; ") {
				name, after, _ := strings.Cut(strings.ToLower(command), " ")
				if name == "pubsub" {
					name += "|" + strings.Fields(after)[0]
				}
				words["+"+name] = true
			}
			for _, ending := range right.On {
				switch on := c.main; {
				case on == "": // keys and channels of All are those of the others
				case ending == "":
					words["~"+on] = true
				case ending == keyspace.Wake || ending == keyspace.Canceled:
					ending = strings.Replace(ending, keyspace.Wake, keyspace.Wake+":*", 1)
					words["&{"+on+"}"+ending], words["&"+on+ending] = true, true
				default:
					words["~{"+on+"}"+ending] = true
				}
			}
		}
		given := map[string]bool{}
		for _, other := range c.before {
			for _, word := range rules[other] {
				given[word] = true
			}
		}
		granted := slices.DeleteFunc(slices.Clone(rules[part]), func(word string) bool { return !strings.ContainsAny(word[:1], "+~&") })
		require.ElementsMatch(t, granted, without(words, given), "part %d", part)
	}
}

func keys(set map[string]bool) (names []string) {
	for name := range set {
		names = append(names, name)
	}
	return names
}

func without(set map[string]bool, others ...map[string]bool) []string {
	return slices.DeleteFunc(keys(set), func(name string) bool {
		return slices.ContainsFunc(others, func(other map[string]bool) bool { return other[name] })
	})
}

// inScript is which commands a script calls. Each has to be named where it is called.
func inScript(t *testing.T, path string) (names []string) {
	source, err := os.ReadFile(path)
	require.NoError(t, err)
	text := regexp.MustCompile(`--.*`).ReplaceAllString(string(source), "")
	calls := regexp.MustCompile(`\b(?:redis|server)\s*\.\s*p?call\b`).FindAllString(text, -1)
	named := regexp.MustCompile(`\bredis\.p?call\('([A-Z]+)'`).FindAllStringSubmatch(text, -1)
	require.Len(t, named, len(calls), "%s calls a command that this test cannot read", path)
	require.NotRegexp(t, `\b(redis|server)\b([^.]|$)`, text, "%s calls a command that this test cannot read", path)
	for _, name := range named {
		names = append(names, strings.ToLower(name[1]))
	}
	if i := slices.Index(names, "pubsub"); i >= 0 { // which has subcommands
		names = slices.DeleteFunc(names, func(name string) bool { return name == "pubsub" })
		counts := regexp.MustCompile(`'PUBSUB', '([A-Z]*)'`).FindAllStringSubmatch(text, -1)
		require.Len(t, counts, strings.Count(text, "'PUBSUB'"), path)
		for _, count := range counts {
			names = append(names, "pubsub|"+strings.ToLower(count[1]))
		}
	}
	return names
}

// inGo is which commands the Go code sends by itself: those that begin a command's
// arguments, and the methods of a client or a pub/sub connection that are one.
func inGo(t *testing.T) map[string]bool {
	names := map[string]bool{}
	isCommand := map[string]bool{}
	for _, client := range []reflect.Type{reflect.TypeFor[redis.UniversalClient](), reflect.TypeFor[redis.Pipeliner](), reflect.TypeFor[*redis.PubSub]()} {
		for i := range client.NumMethod() {
			isCommand[client.Method(i).Name] = true
		}
	}
	for _, plumbing := range []string{"Process", "Pipeline", "Exec", "Receive", "Close", "PoolStats"} {
		delete(isCommand, plumbing)
	}
	for _, file := range sources(t) {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		require.NoError(t, err)
		ast.Inspect(parsed, func(n ast.Node) bool {
			for _, name := range commandsAt(n, isCommand) {
				names[strings.ToLower(name)] = true
			}
			return true
		})
	}
	return names
}

// sources are the Go files of the library: those of the root and of what it is made of.
func sources(t *testing.T) []string {
	root := systest.Root(t)
	files, err := filepath.Glob(filepath.Join(root, "*.go"))
	require.NoError(t, err)
	require.NoError(t, filepath.WalkDir(filepath.Join(root, "internal"), func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && strings.HasSuffix(entry.Name(), "test"): // redistest, systest
			return filepath.SkipDir
		case strings.HasSuffix(path, ".go"):
			files = append(files, path)
		}
		return nil
	}))
	return slices.DeleteFunc(files, func(file string) bool { return strings.HasSuffix(file, "_test.go") })
}

// commandsAt is which commands a piece of Go code names: as the first of a list of
// arguments, or as a method of a client.
func commandsAt(n ast.Node, isCommand map[string]bool) (names []string) {
	text := func(e ast.Expr) {
		if s, ok := e.(*ast.BasicLit); ok && s.Kind == token.STRING {
			name, _ := strconv.Unquote(s.Value)
			names = append(names, name)
		}
	}
	named := func(e ast.Expr, wanted ...string) bool {
		switch e := e.(type) {
		case *ast.Ident:
			return slices.Contains(wanted, strings.ToLower(e.Name))
		case *ast.SelectorExpr:
			return slices.Contains(wanted, strings.ToLower(e.Sel.Name))
		}
		return false
	}
	switch n := n.(type) {
	case *ast.KeyValueExpr: // Args: []any{"set", ...}
		if list, ok := n.Value.(*ast.CompositeLit); ok && named(n.Key, "args") && len(list.Elts) > 0 {
			text(list.Elts[0])
		}
	case *ast.AssignStmt: // args[0], ... = "eval", ...
		if at, ok := n.Lhs[0].(*ast.IndexExpr); ok && named(at.X, "args") {
			text(n.Rhs[0])
		}
	case *ast.CallExpr:
		method, ok := n.Fun.(*ast.SelectorExpr)
		switch {
		case named(n.Fun, "plain") && len(n.Args) > 0: // redisexec.Plain("set", ...)
			text(n.Args[0])
		case named(n.Fun, "append") && len(n.Args) > 1 && named(n.Args[0], "args"):
			text(n.Args[1])
		case ok && isCommand[method.Sel.Name] && named(method.X, "rdb", "client", "conn", "pubsub", "pipe"):
			names = append(names, method.Sel.Name)
		}
	}
	return names
}
