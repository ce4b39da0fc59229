package scripts

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/redistest"
)

func TestScripts_ALineOfAnotherTypeCostsNoLock(t *testing.T) {
	eachKind(t, func(t *testing.T, l *lineScripts, k lineKind) {
		ctx := t.Context()
		l.listen("a:1:500")
		for _, put := range []func() error{
			func() error { return l.rdb.Set(ctx, l.line, "foreign", time.Hour).Err() },
			func() error { return l.rdb.HSet(ctx, l.line, "a:1:500", "1").Err() },
			func() error { return l.rdb.RPush(ctx, l.line, "a:1:500").Err() },
			func() error { return l.rdb.SAdd(ctx, l.line, "a:1:500").Err() },
		} {
			require.NoError(t, l.rdb.Del(ctx, l.line).Err())
			require.NoError(t, put())
			before := l.rdb.Type(ctx, l.line).Val()
			require.Nil(t, l.ask(k, "b:1:500", "", "join"))
			got := l.ask(k, "a:1:500", "7", "join")
			require.EqualValues(t, -1, got.ahead)
			require.InDelta(t, time.Minute, got.left, float64(50*time.Second))
			require.Equal(t, -1, l.leave(k, "a:1:500"))
			require.Equal(t, 0, l.release(k, "b:1:500"))
			require.Equal(t, -1, l.leave(k, "a:1:500"))
			require.Equal(t, -1, l.release(k, "b:1:500"))
			require.Equal(t, before, l.rdb.Type(ctx, l.line).Val())
		}
	})
}

func TestScripts_OnAFullServerLinesMoveOn(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	kindsOn(t, rdb, func(t *testing.T, l *lineScripts, k lineKind) {
		ctx := t.Context()
		a, b, _ := l.listen("a:1:500"), l.listen("b:1:500"), l.listen("c:1:500")
		l.hold(k)
		first := l.ask(k, "a:1:500", "", "join")
		l.ask(k, "b:1:500", "", "join")
		require.NoError(t, rdb.ConfigSet(ctx, "maxmemory", "1").Err())
		defer func() { require.NoError(t, rdb.ConfigSet(context.Background(), "maxmemory", "0").Err()) }()
		got := l.ask(k, "c:1:500", "", "join")
		require.EqualValues(t, -1, got.ahead)
		require.InDelta(t, time.Minute, got.left, float64(50*time.Second))
		got = l.ask(k, "a:1:500", "", "join")
		require.Equal(t, first.score, got.score, "it is in line")
		require.Equal(t, []string{"a:1:500", "b:1:500"}, l.inLine())
		require.Equal(t, 1, l.release(k, ""))
		require.Equal(t, "a:1:500", l.hears(a))
		require.Equal(t, "500", l.hears(b))
		require.Equal(t, []string{"a:1:500"}, l.reserved())
		l.leave(k, "a:1:500") // refused, it gives up
		require.Equal(t, "b:1:500", l.hears(b))
		require.Equal(t, []string{"b:1:500"}, l.reserved())
		require.Empty(t, l.inLine())
	})
}
