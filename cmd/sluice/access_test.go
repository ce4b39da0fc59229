package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/cmd/sluice/report"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/store"
)

// looking is the commands that look, and changing those that change something, each once. fill has
// made what they need.
var (
	looking = []string{
		"queues", "queues --wide", "workers", "workers orders", "ls orders --state scheduled --reason timeout", "get orders leased-2", "top --frames 1 --json", "ls orders", "ls orders --state scheduled", "ls orders --state leased", "ls mails --state dead --payload",
		"get orders due-1 --payload", "get mails dead-1", "locks", "lock stock", "lock gate", "cancel orders due-1 --dry-run", "purge orders --dry-run",
		"drop orders --all --dry-run", "unlock stock --dry-run", "pause orders --dry-run", "limit limited", "limit limited --running 3 --dry-run", "stock orders", "stock set orders phone 1 --dry-run",
		"ls orders --state done --payload", "ls orders --state done --wide", "get orders done-1 --payload",
	}
	changing = []string{
		"pause mails", "resume mails", "limit limited --running 3 --rate 10/s", "limit limited --off", "stock set orders phone 1", "stock delete orders phone", "run orders later-1", "delay mails due-1 --for 1m", "bury orders due-1", "bury mails leased-1", "revive orders dead-1",
		"drop mails dead-2", "cancel orders leased-1", "cancel mails later-1", "cancel orders done-1", "unlock stock --force", "unlock gate --force", "purge orders --confirm orders",
	}
)

// become makes a user with a rule, and returns a shell as that user.
func (s stage) become(user string, rule []string) shell {
	s.Helper()
	words := []any{"ACL", "SETUSER", user, "reset", "on", ">secret-" + user}
	for _, word := range rule {
		words = append(words, word)
	}
	require.NoError(s, s.rdb.Do(s.Context(), words...).Err(), "%q", words)
	return shell{t: s.T, env: map[string]string{"SLUICE_URL": "redis://" + s.server.Addr, "SLUICE_USERNAME": user, "SLUICE_PASSWORD": "secret-" + user}}
}

// reset fills the server anew, with a server flushed of what was there: it is the test's own.
func (s stage) reset() {
	s.Helper()
	require.NoError(s, s.rdb.FlushAll(s.Context()).Err())
	s.fill(s.queue("orders"))
	s.fill(s.queue("mails"))
	s.staff(s.queue("orders"))
	s.finish(s.queue("orders", sluice.WithRetention(time.Hour)), "done-1", "result")
	require.NoError(s, s.rdb.ZAdd(s.Context(), "Queue:bare", redis.Z{Score: 4e9, Member: "a foreign producer's"}).Err())
	require.NoError(s, s.queue("limited").SetLimits(s.Context(), sluice.Limits{Running: 2, Rate: 10}))
	require.NoError(s, s.rdb.Set(s.Context(), "Lock:stock", "token", time.Hour).Err())
	s.takePermits("gate", 2)
}

// takePermits takes permits of a name that has three, the first one without a label.
func (s stage) takePermits(name string, n int) {
	s.Helper()
	locker, err := sluice.NewLocker(s.rdb, sluice.WithTTL(time.Hour))
	require.NoError(s, err)
	for i := range n {
		options := []sluice.LockOption{sluice.WithPermits(3)}
		if i > 0 {
			options = append(options, sluice.WithOwner(fmt.Sprint("door-", i)))
		}
		_, err = locker.Lock(s.Context(), name, options...)
		require.NoError(s, err)
	}
	s.Cleanup(func() { _ = locker.Close() })
}

// line puts members into the line of a lock or queue that do not listen: what would wake them takes
// them out.
func (s stage) line(key string, members int) {
	s.Helper()
	for i := range members {
		member := fmt.Sprint("DEAD", i, ":1")
		if i == 0 && strings.HasPrefix(key, "Lock:") { // it has named itself
			member = fmt.Sprint("DEAD", i, ":till-9:1:50")
		}
		require.NoError(s, s.rdb.ZAdd(s.Context(), "{"+key+"}:line", redis.Z{Score: float64(i), Member: member}).Err())
	}
}

func (s shell) ruleOf(args ...string) []string {
	s.t.Helper()
	var rule aclJSON
	s.json(exitOK, &rule, append([]string{"acl"}, args...)...)
	return rule.Rule[2:] // without reset and on
}

func TestACL_AViewerLooksAndChangesNothing(t *testing.T) {
	s := newStage(t)
	s.reset()
	require.NoError(t, s.rdb.HSet(t.Context(), "{Queue:orders}:stock", "total:phone", 1).Err())
	viewer := s.become("viewer", s.ruleOf())
	for _, line := range looking {
		viewer.ok(strings.Fields(line)...)
	}
	before := s.dump()
	for _, line := range changing {
		got := viewer.run(strings.Fields(line)...)
		require.Equal(t, exitDenied, got.code, "%s\n%s%s", line, got.out, got.err)
		require.Contains(t, got.err, "sluice acl", line)
	}
	require.Equal(t, before, s.dump(), "a viewer has changed something")
}

func TestACL_AnOperatorChanges(t *testing.T) {
	s := newStage(t)
	s.reset()
	operator := s.become("operator", s.ruleOf("--write"))
	for _, line := range slices.Concat(looking, changing) {
		operator.ok(strings.Fields(line)...)
	}
}

// TestACL_EachWordIsNeeded takes one word after the other away.
func TestACL_EachWordIsNeeded(t *testing.T) {
	s := newStage(t)
	// Nothing that a user notices: wake-ups that polls make up for, counts; PING is go-redis's own.
	spare := []string{"resetchannels", "+hincrby", "+pexpire", "+ping", "+eval", "+publish", "+rename", "&Queue:*", "&{Queue:*}:*", "&Lock:*", "&{Lock:*}:*"}
	rule := s.ruleOf("--write")
	for i, word := range rule {
		if slices.Contains(spare, word) {
			continue
		}
		s.reset()
		user := s.become(fmt.Sprint("lacks-", i), slices.Delete(slices.Clone(rule), i, i+1))
		denied := false
		for _, line := range slices.Concat(looking, changing) {
			got := user.run(strings.Fields(line)...)
			denied = denied || got.code == exitDenied
		}
		require.True(t, denied, "without %s nothing is denied", word)
	}
}

// TestACL_GrantsWhatTheLibraryNeeds: the words that the tool grants are rights of the library, or
// of its own commands.
func TestACL_GrantsWhatTheLibraryNeeds(t *testing.T) {
	known := strings.Fields("SCAN TYPE EXISTS RENAME") // the tool's own
	for _, right := range store.Rights {
		for command := range strings.SplitSeq(right.Commands, "; ") {
			known = append(known, strings.Fields(command)[0])
		}
	}
	for _, word := range slices.Concat(readCommands, writeCommands) {
		require.Contains(t, known, strings.ToUpper(word[1:]))
	}
}

// dump returns all keys with their contents.
func (s stage) dump() map[string]string {
	s.Helper()
	all := map[string]string{}
	for _, key := range s.rdb.Keys(s.Context(), "*").Val() {
		all[key] = s.rdb.Dump(s.Context(), key).Val()
	}
	return all
}

func TestACL_QuotesForShells(t *testing.T) {
	for word, want := range map[string]string{
		"+get": "+get", "~Queue:*": "'~Queue:*'", "+pubsub|numsub": "'+pubsub|numsub'", "a'b": `'a'\''b'`, "a\x1b[m": `$'a\x1b[m'`, "": "''",
	} {
		require.Equal(t, want, shellWord(word))
	}
}

func TestCluster(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t)
	s := shell{t: t, env: map[string]string{"SLUICE_URL": "redis://" + c.Nodes[0].Addr, "SLUICE_CLUSTER": "true"}}
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{c.Nodes[0].Addr}})
	defer func() { _ = rdb.Close() }()
	st := stage{T: t, shell: s, rdb: rdb}
	st.finish(st.queue("orders", sluice.WithRetention(time.Hour)), "done-1", "")
	st.fill(st.queue("orders"))
	st.fill(st.queue("mails"))
	_, err := st.queue("orders").Enqueue(t.Context(), sluice.Task{ID: "leased-2"})
	require.NoError(t, err)
	require.NoError(t, rdb.Set(t.Context(), "Lock:stock", "token", time.Hour).Err())
	st.takePermits("gate", 2)
	for _, node := range c.Nodes {
		client := node.Direct(t)
		for user, rule := range map[string][]string{"viewer": s.ruleOf(), "operator": s.ruleOf("--write")} {
			words := []any{"ACL", "SETUSER", user, "reset", "on", ">pw"}
			for _, word := range rule {
				words = append(words, word)
			}
			require.NoError(t, client.Do(t.Context(), words...).Err())
		}
	}
	s.env["SLUICE_PASSWORD"] = "pw"
	s.env["SLUICE_USERNAME"] = "viewer"
	for _, line := range looking {
		s.ok(strings.Fields(line)...)
	}
	require.Equal(t, exitDenied, s.run("drop", "mails", "dead-1").code)
	s.env["SLUICE_USERNAME"] = "operator"
	for _, line := range changing {
		s.ok(strings.Fields(line)...)
	}
}

// TestCluster_IsFoundOut: a node that is named alone shows the queues and locks of all, whichever it
// is, and for each user.
func TestCluster_IsFoundOut(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t)
	rdb := c.Client(t)
	locker, err := sluice.NewLocker(rdb)
	require.NoError(t, err)
	for i := range 20 {
		q, err := sluice.NewQueue(rdb, fmt.Sprint("q", i))
		require.NoError(t, err)
		_, err = q.Enqueue(t.Context(), sluice.Task{ID: "a"})
		require.NoError(t, err)
		_, err = locker.Lock(t.Context(), fmt.Sprint("row", i))
		require.NoError(t, err)
	}
	for _, node := range c.Nodes {
		words := []any{"ACL", "SETUSER", "viewer", "reset", "on", ">pw"}
		for _, word := range (shell{t: t}).ruleOf("--cluster") {
			words = append(words, word)
		}
		require.NoError(t, node.Direct(t).Do(t.Context(), words...).Err())
	}
	for _, node := range c.Nodes {
		s := shell{t: t, env: map[string]string{"SLUICE_URL": "redis://" + node.Addr}}
		for _, s.env["SLUICE_USERNAME"] = range []string{"", "viewer"} {
			s.env["SLUICE_PASSWORD"] = map[bool]string{true: "pw"}[s.env["SLUICE_USERNAME"] != ""]
			var found report.Queues
			s.json(exitOK, &found, "queues")
			require.Len(t, found.Queues, 20)
			require.True(t, found.Complete)
			require.Equal(t, 20, strings.Count(s.ok("locks"), "row"))
			s.ok("get", "q7", "a")
		}
	}
}

// hostile is what may be in names, IDs, reasons and payloads.
var hostile = []string{"\x1b[2J\x1b]0;owned\a", "a\nb\rc\td", "\u202etxt.exe", "\x9b31m\xff\xfe", "\u009b31m", "\"quoted\"", "back\\slash", " spaces ", "\x00", "\u2028", "-rf", "a'b`c$(d)", "\u200bzero", "\U000e0041tag"}

// requirePlain checks that nothing in a text acts on a terminal.
func requirePlain(t *testing.T, text, what string) {
	t.Helper()
	require.Equal(t, report.Escape(text), text, what)
}

// TestHostile_NothingReachesTheTerminal prints hostile texts in each place, and gives them back.
func TestHostile_NothingReachesTheTerminal(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	ctx := t.Context()
	for i, text := range hostile {
		q := s.queue("q" + text)
		for _, id := range []string{text, "other"} {
			_, err := q.Enqueue(ctx, sluice.Task{ID: id, Payload: []byte(text)})
			require.NoError(t, err)
			entries, err := q.Claim(ctx, 1, time.Minute)
			require.NoError(t, err)
			require.NoError(t, q.Bury(ctx, text, entries[0]))
		}
		s.staffBy(q, "WORKER"+text, text)
		s.finish(s.queue("q"+text, sluice.WithRetention(time.Hour)), "done"+text, text)
		require.NoError(t, s.rdb.Set(ctx, "Lock:l"+text, "token", time.Hour).Err())
		name, id, done := show("q"+text), show(text), show("done"+text)
		for _, line := range [][]string{
			{"ls", name, "--state", "dead", "--payload", "--wide"}, {"workers", name}, {"ls", name, "--state", "scheduled"}, {"ls", name, "--state", "leased"},
			{"ls", name, "--state", "done", "--payload"}, {"ls", name, "--state", "done", "--wide"}, {"get", name, done}, {"get", name, done, "--payload"}, {"cancel", name, done},
			{"get", name, "leased-2"}, {"get", name, "retried-1"}, {"cancel", name, "retried-1"}, {"get", name, "--payload", "--", id}, {"lock", show("l" + text)},
			{"drop", name, "--dry-run", "--", id}, {"revive", name, "--all", "--dry-run"}, {"revive", name, "--", id}, {"cancel", name, "--", id}, {"cancel", name, "--", id}, {"pause", name}, {"limit", name, "--running", "3"}, {"purge", name},
		} {
			for _, more := range [][]string{{"--quoted"}, {"--quoted", "--json"}} {
				got := s.run(slices.Concat(more, line)...)
				requirePlain(t, got.out+got.err, fmt.Sprintf("%q", line))
				if len(more) == 2 && got.out != "" {
					require.True(t, json.Valid([]byte(got.out)))
				}
				if line[0] == "ls" || line[0] == "workers" || line[0] == "lock" || line[0] == "pause" || line[0] == "limit" {
					require.Zero(t, got.code, "%q: %s", line, got.err)
				}
			}
		}
		require.Equal(t, "absent", s.stateOf(q, text), "%d: it was not found by what was printed", i)
	}
	for _, args := range [][]string{{"queues"}, {"workers"}, {"workers", "--json"}, {"locks"}, {"top", "--frames", "1"}, {"queues", "--json"}, {"locks", "--json"}} {
		got := s.run(args...)
		require.Zero(t, got.code)
		requirePlain(t, got.out+got.err, fmt.Sprint(args))
	}
	for _, text := range hostile { // as arguments, prefixes and addresses that are wrong
		for _, args := range [][]string{{text}, {"get", text, text}, {"queues", "--queue-prefix", text}, {"queues", "--url", text}, {"queues", "--url", "redis://" + text + ":1"}, {"acl", "--queue-prefix", text, "--user", text}, {"ls", "q", "--state", text}, {"limit", "q", "--rate", text}, {"limit", "q", "--running", text}, {"queues", "--" + text}} {
			got := s.run(args...)
			requirePlain(t, got.out+got.err, fmt.Sprintf("%q", args))
		}
	}
}

func TestShow_IsReadBack(t *testing.T) {
	for _, text := range append(hostile, "plain", "订单", "a b", "") {
		back, err := unshow(show(text))
		require.NoError(t, err)
		require.Equal(t, text, back)
		requirePlain(t, show(text), text)
	}
}

// TestCanary_NoSecretIsPrinted looks for tokens, payloads and passwords in what each command
// prints, also as it fails.
func TestCanary_NoSecretIsPrinted(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	ctx := t.Context()
	const token, payload, password = "canary-token", "canary-payload", "canary-password"
	fill := func() {
		s.reset()
		require.NoError(t, s.rdb.Set(ctx, "Lock:stock", token, time.Hour).Err())
		require.NoError(t, s.rdb.HSet(ctx, "{Queue:orders}:results", "done-1", "1 "+payload).Err())
		for _, name := range []string{"orders", "mails"} {
			for _, id := range []string{"due-1", "later-1", "dead-2", "leased-1"} {
				require.NoError(t, s.rdb.HSet(ctx, "{Queue:"+name+"}:tasks", id, payload).Err())
			}
			e, err := s.queue(name).Get(ctx, "due-1")
			require.NoError(t, err)
			require.Equal(t, payload, string(e.Payload))
		}
	}
	require.NoError(t, s.rdb.Do(ctx, "ACL", "SETUSER", "op", "reset", "on", ">"+password, "~*", "&*", "+@all").Err())
	host := s.server.Addr
	for _, url := range []string{"redis://op:" + password + "@" + host, "redis://op:" + password + "x@" + host, "rediss://op:" + password + "@" + host, "redis://op:" + password + "@127.0.0.1:1", "redis://op:" + password + "/@" + host, "http://op:" + password + "@" + host} {
		fill()
		lines := slices.Concat(looking, changing)
		if url != "redis://op:"+password+"@"+host { // it fails in the same way with each
			lines = []string{"get orders due-1", "unlock stock --force"}
		}
		if strings.HasPrefix(url, "rediss") { // a server without TLS answers nothing: each takes seconds
			lines = []string{"queues"}
		}
		s.env = map[string]string{"SLUICE_URL": url, "SLUICE_SENTINEL_PASSWORD": password}
		for _, line := range lines {
			line = strings.ReplaceAll(line, " --payload", "")
			for _, more := range []string{"", " --json"} {
				got := s.run(strings.Fields(line + more)...)
				require.NotContains(t, got.out+got.err, "canary", line)
			}
		}
		require.NotContains(t, s.run("--help").out, "canary")
		require.NotContains(t, s.run("queues", "--help").out, "canary")
	}
	fill()
	s.env = map[string]string{"SLUICE_URL": "redis://" + host}
	require.Contains(t, s.ok("get", "orders", "due-1", "--payload"), payload, "the canary is there")
	require.Contains(t, s.ok("get", "orders", "done-1", "--payload"), payload, "the canary is there")
}
