package scripts

import (
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/redisexec"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/store"
)

// TestScripts_AReleaseReservesForTheFirst, which is out of the line then: for as long as its member
// says, whichever client comes first.
func TestScripts_AReleaseReservesForTheFirst(t *testing.T) {
	eachKind(t, func(t *testing.T, l *lineScripts, k lineKind) {
		a, b := l.listen("a:1:500"), l.listen("b:1:321")
		l.hold(k)
		l.ask(k, "b:1:321", "", "join")
		l.ask(k, "a:1:500", "", "join")
		require.Equal(t, -1, l.release(k, "unknown"))
		require.Equal(t, []string{"b:1:321", "a:1:500"}, l.inLine())
		require.Equal(t, 1, l.release(k, ""))
		require.Equal(t, "b:1:321", l.hears(b))
		require.Equal(t, "321", l.hears(a), "it is told that it is the first: b may be stopped")
		require.Equal(t, []string{"a:1:500"}, l.inLine())
		require.Equal(t, []string{"b:1:321"}, l.reserved())
		for _, other := range []string{"", "b:2:321", "b:1:320"} {
			left, err := l.rdb.Eval(t.Context(), k.acquire.Source(), k.keys(l), "token", 60_000, k.third, other, "", "").Int()
			require.NoError(t, err)
			require.Positive(t, left, other)
		}
		require.Positive(t, l.ask(k, "a:1:500", "", "join").left)
		if k.acquire == scripts.OfLocks.Acquire {
			require.False(t, l.rdb.SetNX(t.Context(), l.key, "foreign", time.Minute).Val())
		}
		require.Nil(t, l.ask(k, "b:1:321", "", ""))
		require.Empty(t, l.reserved())
		require.Equal(t, 1, l.release(k, "b:1:321"))
		require.Equal(t, "a:1:500", l.hears(a), "and nothing before")
		require.Nil(t, l.ask(k, "a:1:500", "", "join"))
		require.Equal(t, 0, l.release(k, "a:1:500"))
		require.Empty(t, l.inLine())
		require.Empty(t, l.reserved())
	})
}

// TestScripts_AReservationEnds: by what its member says, half a second at most, so that no other
// program's member takes a lock.
func TestScripts_AReservationEnds(t *testing.T) {
	eachKind(t, func(t *testing.T, l *lineScripts, k lineKind) {
		l.listen("a:1")
		for ms, most := range map[string]int{"20": 20, "321": 321, "501": 500, "3600000": 500, "0": 1} {
			l.hold(k)
			member := "a:1:" + ms
			l.ask(k, member, "", "join")
			var left *redis.Cmd
			_, err := l.rdb.Pipelined(t.Context(), func(p redis.Pipeliner) error {
				p.Eval(t.Context(), k.release.Source(), k.keys(l), "token of ", "", 0, "")
				left = p.Eval(t.Context(), keepReservations, []string{l.key})
				return nil
			})
			require.NoError(t, err)
			n, err := left.Int()
			require.NoError(t, err)
			require.LessOrEqual(t, n, most+1)
			if most > 100 {
				require.Positive(t, n)
				require.Nil(t, l.ask(k, member, "", ""))
				require.Zero(t, l.release(k, member))
			}
			if k.acquire == scripts.OfLocks.Acquire {
				require.NoError(t, l.rdb.Del(t.Context(), l.key).Err())
			} else {
				require.NoError(t, l.rdb.ZRem(t.Context(), l.key, ">"+member).Err())
			}
		}
	})
}

// TestScripts_AnOlderBuildIsWokenOnly: its member has no ms, and it knows of no reservations.
func TestScripts_AnOlderBuildIsWokenOnly(t *testing.T) {
	eachKind(t, func(t *testing.T, l *lineScripts, k lineKind) {
		a, b := l.listen("a:1"), l.listen("b:1:500")
		l.hold(k)
		l.put("a:1", 1)
		l.ask(k, "b:1:500", "", "join")
		require.Equal(t, 1, l.release(k, ""))
		require.Equal(t, "a:1", l.hears(a))
		require.Equal(t, "60000", l.hears(b))
		require.Empty(t, l.reserved())
		require.Equal(t, []string{"b:1:500"}, l.inLine())
		l.hold(k)
	})
}

// TestScripts_PermitsThatAreFreeAreAllTaken: more end at a time than processes are woken, and each
// that takes one has the next reserved. One that takes the last by itself says when the first of
// them ends.
func TestScripts_PermitsThatAreFreeAreAllTaken(t *testing.T) {
	eachLine(t, func(t *testing.T, l *lineScripts) {
		ctx, k := t.Context(), lineKind{scripts.OfPermits.Acquire, scripts.OfPermits.Release, "3"}
		keep := func() { require.NoError(t, l.rdb.Eval(ctx, keepReservations, []string{l.key}).Err()) }
		a, b, c, d := l.listen("a:1:500"), l.listen("b:1:400"), l.listen("c:1:300"), l.listen("d:1:500")
		for _, holder := range []string{"x", "y", "z"} {
			require.Nil(t, l.ask(k, holder, "", ""))
		}
		for _, member := range []string{"a:1:500", "b:1:400", "c:1:300", "d:1:500"} {
			require.NotNil(t, l.ask(k, member, "", "join"))
		}
		require.NoError(t, l.rdb.ZAdd(ctx, l.key, redis.Z{Score: 1, Member: "token of x"}, redis.Z{Score: 1, Member: "token of y"}).Err())
		require.Equal(t, 1, l.release(k, "z"))
		require.Equal(t, "a:1:500", l.hears(a))
		require.Equal(t, "500", l.hears(b))
		require.Nil(t, l.ask(k, "a:1:500", "", ""))
		keep()
		require.Equal(t, "b:1:400", l.hears(b))
		require.Equal(t, "400", l.hears(c))
		require.Nil(t, l.ask(k, "c:1:300", "", "join"), "the third is free, and it polls")
		require.Equal(t, []string{"b:1:400"}, l.reserved())
		left, err := strconv.Atoi(l.hears(d))
		require.NoError(t, err)
		require.LessOrEqual(t, left, 60_000)
		require.Nil(t, l.ask(k, "b:1:400", "", ""))
		require.NotNil(t, l.ask(k, "d:1:500", "", "join"))
		require.Equal(t, []string{"d:1:500"}, l.inLine())
	})
}

// TestScripts_AReservationIsNoHolder to operators: it shows as one that waits, and can be forced
// away.
func TestScripts_AReservationIsNoHolder(t *testing.T) {
	eachKind(t, func(t *testing.T, l *lineScripts, k lineKind) {
		ctx := t.Context()
		a := l.listen("a:1:500")
		l.listen("b:1:500")
		l.hold(k)
		l.ask(k, "a:1:500", "", "join")
		l.ask(k, "b:1:500", "", "join")
		require.Equal(t, 1, l.release(k, ""))
		require.Equal(t, "a:1:500", l.hears(a))
		others := 0
		if k.acquire == scripts.OfPermits.Acquire {
			others = 1
		}
		info, err := store.DecodeInspected(l.rdb.Eval(ctx, scripts.OfLocks.Inspect.Source(), []string{l.key, l.line}, "").Val())
		require.NoError(t, err)
		require.Equal(t, others, info.Holders)
		require.Equal(t, 2, info.Waiting)
		holders := l.rdb.Eval(ctx, scripts.Force.Source(), []string{l.key, l.line}, "").Val()
		require.Len(t, holders, others)
		require.NotContains(t, l.reserved(), "a:1:500")
		require.Empty(t, l.inLine(), "it goes to the next")
	})
}

// TestScripts_WhoLeavesPassesOnWhatHasEnded: the first in line was told when the hold would end, and
// leaves without having come.
func TestScripts_WhoLeavesPassesOnWhatHasEnded(t *testing.T) {
	eachKind(t, func(t *testing.T, l *lineScripts, k lineKind) {
		l.listen("a:1:500")
		b := l.listen("b:1:500")
		l.hold(k)
		l.ask(k, "a:1:500", "", "join")
		l.ask(k, "b:1:500", "", "join")
		if k.acquire == scripts.OfLocks.Acquire {
			require.NoError(t, l.rdb.Del(t.Context(), l.key).Err())
		} else {
			require.NoError(t, l.rdb.ZAdd(t.Context(), l.key, redis.Z{Score: 1, Member: "token of "}).Err())
		}
		l.leave(k, "a:1:500")
		require.Equal(t, "b:1:500", l.hears(b))
		require.Equal(t, []string{"b:1:500"}, l.reserved())
		require.Empty(t, l.inLine())
	})
}

// TestScripts_AReservationOutlivesNobody: the key ends with the last reservation, though no process
// comes any more.
func TestScripts_AReservationOutlivesNobody(t *testing.T) {
	eachKind(t, func(t *testing.T, l *lineScripts, k lineKind) {
		l.listen("a:1:400")
		l.hold(k)
		l.ask(k, "a:1:400", "", "join")
		if k.acquire == scripts.OfPermits.Acquire { // the other one has ended
			require.NoError(t, l.rdb.ZAdd(t.Context(), l.key, redis.Z{Score: 1, Member: "token of another"}).Err())
		}
		var held *redis.IntCmd
		var left *redis.DurationCmd
		_, err := l.rdb.Pipelined(t.Context(), func(p redis.Pipeliner) error {
			p.Eval(t.Context(), k.release.Source(), k.keys(l), "token of ", "", 0, "")
			held, left = p.Exists(t.Context(), l.key), p.PTTL(t.Context(), l.key)
			return nil
		})
		require.NoError(t, err)
		require.Equal(t, int64(1), held.Val())
		require.Positive(t, left.Val())
		require.LessOrEqual(t, left.Val(), 401*time.Millisecond)
	})
}

// TestScripts_TheNextIsToldOfTheFirstEnd: one that takes the last free permit by itself leaves the
// line, and who is the first then comes when the first permit ends, which is not its own.
func TestScripts_TheNextIsToldOfTheFirstEnd(t *testing.T) {
	eachLine(t, func(t *testing.T, l *lineScripts) {
		ctx, k := t.Context(), lineKinds["permits"]
		l.listen("a:1:500")
		b := l.listen("b:1:500")
		require.Nil(t, l.ask(k, "x", "", ""))
		require.Nil(t, l.ask(k, "y", "", ""))
		l.ask(k, "a:1:500", "", "join")
		l.ask(k, "b:1:500", "", "join")
		soon := time.Now().Add(30 * time.Second).UnixMilli()
		require.NoError(t, l.rdb.ZAdd(ctx, l.key, redis.Z{Score: 1, Member: "token of x"},
			redis.Z{Score: float64(soon), Member: "token of y"}).Err())
		require.Nil(t, l.ask(k, "a:1:500", "", "join"))
		left, err := strconv.Atoi(l.hears(b))
		require.NoError(t, err)
		require.InDelta(t, 15_000, left, 15_000, "y's end")
	})
}

// TestScripts_AnAdoptionsFenceStays: a release gives back the fences that it has not used, but not
// below one that an adoption has handed out since.
func TestScripts_AnAdoptionsFenceStays(t *testing.T) {
	eachLine(t, func(t *testing.T, l *lineScripts) {
		ctx, keys := t.Context(), lineKinds["fenced"].keys(l)
		ahead := time.Now().Add(time.Hour).UnixMicro() // the clock must not make up for it
		number := func(script *redisexec.Script, args ...any) int64 {
			t.Helper()
			n, err := l.rdb.Eval(ctx, script.Source(), keys, args...).Int64()
			require.NoError(t, err)
			return n
		}
		for _, adopted := range []bool{false, true} {
			require.NoError(t, l.rdb.Set(ctx, keys[2], ahead, time.Hour).Err())
			require.Equal(t, ahead+1, number(scripts.OfLocks.Acquire, "token", 60_000, 1000, "", "", ""))
			next := ahead + 2 // only the first of the thousand was used
			if adopted {
				require.Equal(t, ahead+1001, number(scripts.OfLocks.Extend, "token", 60_000))
				next = ahead + 1002
			}
			require.Equal(t, int64(1), number(scripts.OfLocks.Release, "token", "", 999, ahead+1000))
			require.Equal(t, next, number(scripts.OfLocks.Acquire, "other", 60_000, 1, "", "", ""))
			require.NoError(t, l.rdb.Del(ctx, keys[0]).Err())
		}
	})
}

// TestScripts_WhereMessagesAreDeniedPlacesAreKept: nothing says then that a process is gone.
func TestScripts_WhereMessagesAreDeniedPlacesAreKept(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "--rename-command", "PUBLISH", "")
	kindsOn(t, server.Client(t), func(t *testing.T, l *lineScripts, k lineKind) {
		l.listen("a:1:500")
		l.hold(k)
		l.ask(k, "a:1:500", "", "join")
		require.Zero(t, l.release(k, ""))
		require.Equal(t, []string{"a:1:500"}, l.inLine())
		require.Empty(t, l.reserved())
		l.hold(k)
	})
}

// TestScripts_AKeyWithoutTTLIsGivenOne: the wait for a holder that died between SETNX and EXPIRE
// ends.
func TestScripts_AKeyWithoutTTLIsGivenOne(t *testing.T) {
	eachLine(t, func(t *testing.T, l *lineScripts) {
		require.NoError(t, l.rdb.Set(t.Context(), l.key, "foreign", 0).Err())
		left, err := l.rdb.Eval(t.Context(), scripts.OfLocks.Acquire.Source(), []string{l.key}, "token", 60_000, "", "", "", "").Int()
		require.NoError(t, err)
		require.Equal(t, 60_000, left)
		require.InDelta(t, 60, l.rdb.PTTL(t.Context(), l.key).Val().Seconds(), 30)
	})
}
