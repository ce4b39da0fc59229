package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/redistest"
)

// scale is how many tasks are on the server; a tenth as many locks. SLUICE_TEST_TASKS has more: the
// figures of docs/operator.md are of a million.
func scale(t *testing.T) int {
	text, ok := os.LookupEnv("SLUICE_TEST_TASKS")
	if !ok {
		return 20_000
	}
	n, err := strconv.Atoi(text)
	require.NoError(t, err)
	return n
}

// TestScale_NoCommandIsLong runs what looks beside many tasks and locks, and asks the server which
// of its commands took longest. It fails for a command that is long by its nature; the times are a
// busy machine's too, and are printed.
func TestScale_NoCommandIsLong(t *testing.T) {
	server := redistest.Start(t)
	s := shell{t: t, env: map[string]string{"SLUICE_URL": "redis://" + server.Addr, "SLUICE_TIMEOUT": "10m"}}
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr, ReadTimeout: time.Minute})
	defer func() { _ = rdb.Close() }()
	ctx, tasks := t.Context(), scale(t)
	due := fmt.Sprint(time.Now().Add(-time.Hour).Unix())
	inSteps(ctx, t, rdb, tasks/2, func(p redis.Pipeliner, i int) { p.Do(ctx, "ZADD", "Queue:stuck", due, fmt.Sprint("order-", i)) })
	inSteps(ctx, t, rdb, tasks/4, func(p redis.Pipeliner, i int) {
		p.Do(ctx, "ZADD", "Queue:later", fmt.Sprint(4e9+float64(i)), fmt.Sprint("order-", i))
	})
	inSteps(ctx, t, rdb, tasks/4, func(p redis.Pipeliner, i int) {
		p.Do(ctx, "ZADD", "{Queue:graves}:dead", fmt.Sprint(1.7e9+float64(i)), fmt.Sprint("order-", i))
		p.Do(ctx, "HSET", "{Queue:graves}:state", fmt.Sprint("order-", i), "1:dead:connection refused")
	})
	inSteps(ctx, t, rdb, tasks/10, func(p redis.Pipeliner, i int) { p.Set(ctx, fmt.Sprint("Lock:item-", i), "token", time.Hour) })

	require.NoError(t, rdb.ConfigSet(ctx, "slowlog-log-slower-than", "500").Err())
	require.NoError(t, rdb.ConfigSet(ctx, "slowlog-max-len", "1000000").Err())
	for _, line := range []string{
		"queues", "top --frames 2 --interval 200ms", "ls stuck", "ls graves --state dead --limit 1000", "ls graves --state dead --contains order-" + fmt.Sprint(tasks/4-1) + " --max-look 100000000",
		"get stuck order-7", "locks", "lock item-7", "revive graves --all --dry-run", "revive graves --all --yes",
	} {
		require.NoError(t, rdb.Do(ctx, "SLOWLOG", "RESET").Err())
		require.NoError(t, rdb.ConfigResetStat(ctx).Err())
		from := time.Now()
		s.ok(strings.Fields(line)...)
		took := time.Since(from)
		log, err := rdb.SlowLogGet(ctx, -1).Result()
		require.NoError(t, err)
		longest := redis.SlowLog{Args: []string{"none above 0.5ms"}}
		for _, entry := range log {
			if entry.Duration > longest.Duration {
				longest = entry
			}
		}
		stats, err := rdb.InfoMap(ctx, "commandstats").Result()
		require.NoError(t, err)
		calls, micros := map[string]int{}, map[string]int{}
		for name, text := range stats["Commandstats"] {
			n, us := 0, 0
			_, _ = fmt.Sscanf(text, "calls=%d,usec=%d", &n, &us)
			calls[name], micros[name] = n, us
		}
		for _, forbidden := range []string{"keys", "hgetall", "hkeys", "hvals", "zrangestore"} {
			require.Zero(t, calls["cmdstat_"+forbidden], line)
		}
		t.Logf("%-58s %7s, %5d scripts of %dµs, %4d scans of %dµs, the longest %s (%s)", line, took.Round(time.Millisecond),
			calls["cmdstat_evalsha"], micros["cmdstat_evalsha"]/max(1, calls["cmdstat_evalsha"]), calls["cmdstat_scan"], micros["cmdstat_scan"]/max(1, calls["cmdstat_scan"]), longest.Duration, longest.Args[0])
	}
}

// inSteps sends n commands, some thousand together.
func inSteps(ctx context.Context, t *testing.T, rdb *redis.Client, n int, send func(p redis.Pipeliner, i int)) {
	t.Helper()
	for i := 0; i < n; {
		p := rdb.Pipeline()
		for ; i < n && p.Len() < 5000; i++ {
			send(p, i)
		}
		_, err := p.Exec(ctx)
		require.NoError(t, err)
	}
}
