package main

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// slowThreshold is the least that the server's slow log is told to keep. What takes less
// counts as that.
const slowThreshold = 100 * time.Microsecond

// slowLog finds the server's slowest command of a stretch.
type slowLog struct {
	rdb    *redis.Client
	before map[string]string // the server's own settings
}

func openSlowLog(ctx context.Context, addr string) (l *slowLog, err error) {
	l = &slowLog{redis.NewClient(&redis.Options{Addr: addr}), map[string]string{}}
	for _, key := range []string{"slowlog-log-slower-than", "slowlog-max-len"} {
		found, err := l.rdb.ConfigGet(ctx, key).Result()
		if err != nil {
			return nil, errors.Join(err, l.rdb.Close())
		}
		l.before[key] = found[key]
	}
	err = errors.Join(
		l.rdb.ConfigSet(ctx, "slowlog-log-slower-than", whole(float64(slowThreshold.Microseconds()))).Err(),
		l.rdb.ConfigSet(ctx, "slowlog-max-len", "10000").Err())
	return l, err
}

// close gives the server its settings back.
func (l *slowLog) close(ctx context.Context) (err error) {
	for key, value := range l.before {
		err = errors.Join(err, l.rdb.ConfigSet(ctx, key, value).Err())
	}
	return errors.Join(err, l.rdb.SlowLogReset(ctx).Err(), l.rdb.Close())
}

func (l *slowLog) reset(ctx context.Context) error { return l.rdb.SlowLogReset(ctx).Err() }

// slowest returns how long the slowest command has taken since reset, by the server. A
// script counts with the commands within it.
func (l *slowLog) slowest(ctx context.Context) (time.Duration, error) {
	logged, err := l.rdb.SlowLogGet(ctx, 10_000).Result()
	slowest := slowThreshold
	for _, e := range logged {
		if len(e.Args) == 0 || slices.Contains(housekeeping, strings.ToLower(e.Args[0])) || strings.EqualFold(e.Args[0], "ping") {
			continue
		}
		slowest = max(slowest, e.Duration)
	}
	return slowest, err
}
