package scripts

import (
	"crypto/sha1"
	"encoding/hex"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redisexec"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/store"
)

var update = flag.Bool("update", false, "rewrite lua/digests.txt")

// TestDigests keeps lua/digests.txt true. After a change to a script:
//
//	go test -run TestDigests ./test/scripts -update
func TestDigests(t *testing.T) {
	var want strings.Builder
	for _, name := range slices.Sorted(maps.Keys(scripts.All)) {
		sum := sha1.Sum([]byte(scripts.All[name].Source()))
		fmt.Fprintf(&want, "%s  %s\n", hex.EncodeToString(sum[:]), name)
	}
	if *update {
		require.NoError(t, os.WriteFile("../../lua/digests.txt", []byte(want.String()), 0o644))
		return
	}
	require.Equal(t, want.String(), luaFile("digests.txt"), "scripts have changed: go test -run TestDigests ./test/scripts -update")
}

// TestScriptsAreUsed keeps files without a script, and scripts longer than a
// screen, out of lua/.
func TestScriptsAreUsed(t *testing.T) {
	files, err := fs.ReadDir(lua, "lua")
	require.NoError(t, err)
	for _, file := range files {
		name, isScript := strings.CutSuffix(file.Name(), ".lua")
		if !isScript {
			continue
		}
		require.Contains(t, scripts.All, name, "no operation uses %s", file.Name())
		source := luaFile(file.Name())
		require.LessOrEqual(t, strings.Count(source, "\n"), 50, file.Name())
		require.Contains(t, source, "-- RETURNS", file.Name())
		require.Contains(t, source, "-- RETRY "+retries[scripts.All[name].Retry()], "%s and store.Load differ", file.Name())
	}
}

// TestScripts_PayloadsStandApart: only what enqueues writes a payload, or puts what comes next in a
// task's place, and only what hands a task out, or shows it, reads one.
func TestScripts_PayloadsStandApart(t *testing.T) {
	allowed := map[string][]string{
		`'HSET', KEYS\[2\]`:             {"enqueue.lua", "giveback.lua", "restore.lua", "shared/batch.lua", "shared/group_new.lua", "shared/new.lua", "shared/put.lua", "take.lua"},
		`'H[A-Z]*GET[A-Z]*', KEYS\[2\]`: {"shared/payload.lua", "shared/read.lua"},
	}
	for use, want := range allowed {
		var users []string
		require.NoError(t, fs.WalkDir(lua, "lua", func(path string, _ fs.DirEntry, err error) error {
			name := strings.TrimPrefix(path, "lua/")
			if strings.HasSuffix(name, ".lua") && regexp.MustCompile(use).MatchString(luaFile(name)) {
				users = append(users, name)
			}
			return err
		}))
		require.Equal(t, want, users, use)
	}
}

// TestScripts_KeysAreLiteral: each call of a script names its key as KEYS[n] in that place.
// Clusters behind a proxy reject a script that has a variable there.
func TestScripts_KeysAreLiteral(t *testing.T) {
	comment, call := regexp.MustCompile(`--.*`), regexp.MustCompile(`\bredis\s*\.\s*p?call\b`)
	literal := regexp.MustCompile(`^redis\.p?call\('([A-Z]+)'(, KEYS\[[1-9][0-9]*\])*(, |\))`)
	keyless := []string{"PUBLISH", "PUBSUB", "SPUBLISH", "TIME"}
	for name, script := range scripts.All {
		source := comment.ReplaceAllString(script.Source(), "")
		calls := call.FindAllStringIndex(source, -1)
		require.NotEmpty(t, calls, name)
		for _, at := range calls {
			text, _, _ := strings.Cut(source[at[0]:], "\n")
			found := literal.FindStringSubmatch(text)
			require.NotNil(t, found, "%s: %s", name, text)
			require.Equal(t, slices.Contains(keyless, found[1]), found[2] == "", "%s: %s", name, text)
		}
		require.NotRegexp(t, `\bKEYS\b[^\[]`, strings.ReplaceAll(source, "#KEYS", ""), "%s: an alias of KEYS", name)
		require.NotRegexp(t, `=\s*KEYS\[`, source, "%s: an alias of a key", name)
	}
}

// TestScripts_RightsAreAskedForWholeCommands: Redis 8.6 refuses the question for a command with
// fewer or more words than the command takes, whatever the user's rights. So one function asks, and
// it is asked only for what it knows to ask for. (Check asks with the words that it is given: a
// healthy server would say that it does not know one with too few.)
func TestScripts_RightsAreAskedForWholeCommands(t *testing.T) {
	t.Parallel()
	comment, asks := regexp.MustCompile(`--.*`), regexp.MustCompile(`\b(?:need|may)([(,][^)]*\))`)
	command := regexp.MustCompile(`^[(,] ?'([A-Z]+)', (?:KEYS\[[1-9][0-9]?\]|channel)\)$`)
	const asking = "shared/rights.lua"
	commands := map[string]bool{}
	require.NoError(t, fs.WalkDir(lua, "lua", func(path string, _ fs.DirEntry, err error) error {
		name := strings.TrimPrefix(path, "lua/")
		if !strings.HasSuffix(name, ".lua") {
			return err
		}
		source := comment.ReplaceAllString(luaFile(name), "")
		require.Equal(t, name == asking || name == "shared/check.lua", strings.Contains(source, "acl_check_cmd"), name)
		if name == asking {
			return err
		}
		for _, ask := range asks.FindAllStringSubmatch(source, -1) {
			found := command.FindStringSubmatch(ask[1])
			require.NotNil(t, found, "%s asks for what this test cannot read: %s", name, ask[0])
			commands[found[1]] = true
		}
		return err
	}))
	require.Contains(t, commands, "SPUBLISH")
	require.Contains(t, commands, "ZSCORE")

	rdb, ctx := redistest.Redis(t).Client(t), t.Context()
	const counted = "local words\nlocal redis = { acl_check_cmd = function(...) words = select('#', ...) end }\n"
	known, err := rdb.Command(ctx).Result()
	require.NoError(t, err)
	for name := range commands {
		words, err := rdb.Eval(ctx, counted+luaFile(asking)+"may(ARGV[1], 'key') return words", nil, name).Int()
		require.NoError(t, err)
		require.Contains(t, known, strings.ToLower(name))
		arity := int(known[strings.ToLower(name)].Arity) // negative: at least so many
		require.True(t, words == arity || arity < 0 && words >= -arity, "%s is asked for with %d words, and takes %d", name, words, arity)
	}
}

// TestScripts_PublishWhateverTheQuestionCosts: a server that cannot be asked for the right to a
// sharded channel is sent the message there, and one that has no such channels is sent it
// classically.
func TestScripts_PublishWhateverTheQuestionCosts(t *testing.T) {
	t.Parallel()
	const refusing = `local redis = setmetatable({ acl_check_cmd = function() error({ err = 'ERR refused' }) end }, { __index = redis })
`
	publish := luaFile("shared/rights.lua") + luaFile("shared/publish.lua") + "return publish(ARGV[1] .. '*', '')"
	name, ctx := redistest.Name(t), t.Context()
	modern := redistest.Redis(t).Client(t)
	sharded := modern.SSubscribe(ctx, name)
	defer func() { require.NoError(t, sharded.Close()) }()
	_, err := sharded.Receive(ctx)
	require.NoError(t, err)
	require.Equal(t, int64(1), modern.Eval(ctx, refusing+publish, nil, name).Val())

	old := redistest.Start(t, "--rename-command", "SPUBLISH", "").Client(t)
	classic := old.Subscribe(ctx, name)
	defer func() { require.NoError(t, classic.Close()) }()
	_, err = classic.Receive(ctx)
	require.NoError(t, err)
	require.Equal(t, int64(1), old.Eval(ctx, publish, nil, name).Val())
}

// TestScripts_ArgumentListsAreBounded: no call has more than 1000 arguments, even when a claim
// finds a thousand entries to set aside, and drops as many dead letters, or tasks that a foreign
// producer has put back. The count is the script's, the same on any server; only the real one is
// fast enough for so many.
func TestScripts_ArgumentListsAreBounded(t *testing.T) {
	const counted = `local real = redis
local function bounded(call)
  return function(...)
    if select('#', ...) > 1001 then error('too many arguments of ' .. (...)) end
    return call(...)
  end
end
local redis = setmetatable({ call = bounded(real.call), pcall = bounded(real.pcall) }, { __index = real })
`
	t.Parallel()
	rdb, ctx := redistest.Redis(t).Client(t), t.Context()
	for field, left := range map[string]string{"malformed": "malformed", "1:dead:reason": "back"} {
		for name, args := range map[string][]any{"exchange": {"", "250", "30", "0", "0", "0", "10", "0", "30/"}, "pop": {"250", "10", "0"}} {
			var keys []string
			for _, key := range store.NewQueue(scripts, "Queue:"+redistest.Name(t)+name+left, store.QueueOptions{}).Keys()[:9] {
				keys = append(keys, key.(string))
			}
			pipeline := rdb.Pipeline()
			for i := range 1200 {
				pipeline.ZAdd(ctx, keys[0], redis.Z{Score: 1, Member: i})
				pipeline.HSet(ctx, keys[3], i, field)
				pipeline.ZAdd(ctx, keys[2], redis.Z{Score: 1, Member: i})
			}
			_, err := pipeline.Exec(ctx)
			require.NoError(t, err)
			require.NoError(t, rdb.Eval(ctx, counted+scripts.All[name].Source(), keys, args...).Err(), "%s %s", name, field)
		}
	}
}

// retries are the retry policies as the scripts' headers name them.
var retries = map[redisexec.RetryPolicy]string{
	redisexec.Never: "never", redisexec.Idempotent: "idempotent", redisexec.ReadOnly: "readOnly",
}

// TestScripts_HeadsHeedEachPause: of several queues of which one is paused for a minute, another
// for ever.
func TestScripts_HeadsHeedEachPause(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb, ctx := s.Client(t), t.Context()
		name := redistest.Name(t)
		var queues []store.Looking
		for i, pause := range []time.Duration{-1, time.Minute, 0, -1} {
			queue := "{" + name + "}:" + strconv.Itoa(i)
			q, err := sluice.NewQueue(rdb, queue)
			require.NoError(t, err)
			_, err = q.Enqueue(ctx, sluice.Task{ID: "a"})
			require.NoError(t, err)
			if pause >= 0 {
				require.NoError(t, q.Pause(ctx, pause))
			}
			queues = append(queues, store.Looking{Queue: store.NewQueue(scripts, "Queue:"+queue, store.QueueOptions{})})
		}
		reply, err := redisexec.New(rdb).Run(ctx, scripts.Look(queues))
		require.NoError(t, err)
		heads, err := store.DecodeHeads(reply.Value, 4)
		require.NoError(t, err)
		require.Zero(t, heads[0].Off)
		require.InDelta(t, time.Minute, heads[1].Off, float64(30*time.Second))
		require.Equal(t, store.FarOff, heads[2].Off)
		require.Zero(t, heads[3].Off)
	})
}

// TestScripts_ATokenHoldsNothingAtAKeyOfAnotherType: of another kind of lock, or of another
// program. The janitor would otherwise send its releases for minutes.
func TestScripts_ATokenHoldsNothingAtAKeyOfAnotherType(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb, ctx, key := s.Client(t), t.Context(), redistest.Name(t)
		executor, plain, permits := redisexec.New(rdb), []string{"extend", "release", "extend with fences", "release with fences", "inspect"}, []string{"permit_extend", "permit_release", "permit_inspect"}
		for kind, c := range map[string]struct {
			put     func() error
			scripts []string
		}{
			"permits": {func() error {
				return rdb.ZAdd(ctx, key, redis.Z{Score: -2}, redis.Z{Score: 9e15, Member: "later"}).Err()
			}, plain},
			"plain": {func() error { return rdb.Set(ctx, key, "later", 0).Err() }, permits},
			"hash":  {func() error { return rdb.HSet(ctx, key, "token", "token").Err() }, append(plain, permits...)},
			"list":  {func() error { return rdb.RPush(ctx, key, "token").Err() }, append(plain, permits...)},
		} {
			require.NoError(t, rdb.Del(ctx, key).Err())
			require.NoError(t, c.put())
			for _, name := range c.scripts {
				keys := []any{key}
				if strings.HasSuffix(name, " with fences") {
					keys = append(keys, "{"+key+"}:line", "{"+key+"}:fence")
				}
				reply, err := executor.Run(ctx, scripts.All[strings.TrimSuffix(name, " with fences")].Request(keys, "token", 60_000, "", ""))
				require.NoError(t, err, "%s of %s", name, kind)
				require.Equal(t, strings.HasSuffix(name, "inspect"), reply.Value == int64(-2), "%s of %s", name, kind)
				require.Equal(t, !strings.HasSuffix(name, "inspect"), reply.Value == int64(0), "%s of %s", name, kind)
				require.EqualValues(t, 1, rdb.Exists(ctx, key).Val())
				require.Negative(t, rdb.PTTL(ctx, key).Val())
			}
		}
	})
}

// TestScripts_AnAcquisitionReplacesTheFormerOnes: those of the same call, which had no reply. Their
// copies that come later find it held; and their fences, which no caller has, are taken back.
func TestScripts_AnAcquisitionReplacesTheFormerOnes(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		ctx, rdb, name := t.Context(), s.Client(t), redistest.Name(t)
		lock, permits, fence := "Lock:"+name, "Lock:"+name+"p", "{Lock:"+name+"}:fence"
		run := func(script *redisexec.Script, keys []string, args ...any) any {
			t.Helper()
			reply, err := rdb.Eval(ctx, script.Source(), keys, args...).Result()
			require.NoError(t, err)
			return reply
		}
		require.Zero(t, run(scripts.OfLocks.Acquire, []string{lock}, "a", 60000))
		require.NotZero(t, run(scripts.OfLocks.Acquire, []string{lock}, "b", 60000, "", "", "", "", "x"))
		require.Zero(t, run(scripts.OfLocks.Acquire, []string{lock}, "b", 60000, "", "", "", "", "x", "a"))
		require.NotZero(t, run(scripts.OfLocks.Acquire, []string{lock}, "a", 60000))
		require.Equal(t, "b", rdb.Get(ctx, lock).Val())
		require.NoError(t, rdb.Del(ctx, lock).Err())

		const block = int64(time.Hour / time.Microsecond)
		keys, last := []string{lock, "{" + lock + "}:line", fence}, int64(0)
		last = time.Now().Add(-time.Minute).UnixMicro()
		for _, args := range [][]any{{"a", 60000, block}, {"b", 60000, block, "", "", "", "a"}} {
			text, _ := run(scripts.OfLocks.Acquire, keys, args...).(string)
			first, err := strconv.ParseInt(text, 10, 64)
			require.NoError(t, err)
			require.Greater(t, first, last)
			require.Less(t, first-last, block, "ahead of the clock")
			require.Equal(t, fmt.Sprint(first+block-1), rdb.Get(ctx, fence).Val())
			if last = first; args[0] == "a" {
				require.IsType(t, int64(0), run(scripts.OfLocks.Acquire, keys, "b", 60000, block, "", "", "", "x"), "held")
			}
		}
		require.IsType(t, int64(0), run(scripts.OfLocks.Acquire, keys, "a", 60000, block), "held")
		require.Equal(t, "b", rdb.Get(ctx, lock).Val())

		for _, token := range []string{"a", "other"} {
			require.Zero(t, run(scripts.OfPermits.Acquire, []string{permits}, token, 60000, 2))
		}
		require.NotZero(t, run(scripts.OfPermits.Acquire, []string{permits}, "b", 60000, 2, "", "", "", "x"))
		require.Zero(t, run(scripts.OfPermits.Acquire, []string{permits}, "b", 60000, 2, "", "", "", "x", "a"))
		require.NotZero(t, run(scripts.OfPermits.Acquire, []string{permits}, "a", 60000, 2))
		require.ElementsMatch(t, []string{"", "b", "other"}, rdb.ZRange(ctx, permits, 0, -1).Val())
	})
}

func luaFile(name string) string {
	data, err := fs.ReadFile(lua, "lua/"+name)
	if err != nil {
		panic(err)
	}
	return string(data)
}
