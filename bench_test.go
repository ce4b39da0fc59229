package sluice_test

import (
	"context"
	"crypto/rand"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
)

// BenchmarkLock is a lock that nobody else wants, taken and released.
func BenchmarkLock(b *testing.B) {
	section := sluiceSection(b, redistest.Redis(b).Client(b))
	b.ReportAllocs()
	for b.Loop() {
		section()
	}
}

// BenchmarkFloor is the same by two bare round trips, the least that it can cost.
func BenchmarkFloor(b *testing.B) {
	section := floorSection(b, redistest.Redis(b).Client(b))
	b.ReportAllocs()
	for b.Loop() {
		section()
	}
}

// BenchmarkLockToFloor takes turns between the two, which a noisy machine hits
// alike, and reports the ratio.
func BenchmarkLockToFloor(b *testing.B) {
	rdb := redistest.Redis(b).Client(b)
	contenders := [2]func(){sluiceSection(b, rdb), floorSection(b, rdb)}
	var spent [2]time.Duration
	for i := 0; b.Loop(); i++ {
		for j := range contenders {
			j = (i + j) % 2
			start := time.Now()
			contenders[j]()
			spent[j] += time.Since(start)
		}
	}
	b.ReportMetric(float64(spent[0])/float64(spent[1]), "ratio")
}

func sluiceSection(b *testing.B, rdb redis.UniversalClient) func() {
	ctx, name := cancellable(b), redistest.Name(b)
	l, err := sluice.NewLocker(rdb)
	require.NoError(b, err)
	b.Cleanup(func() { _ = l.Close() })
	return func() {
		k, err := l.Lock(ctx, name)
		if err == nil {
			err = k.Unlock(ctx)
		}
		if err != nil {
			b.Fatal(err)
		}
	}
}

func floorSection(b *testing.B, rdb redis.UniversalClient) func() {
	ctx, key := cancellable(b), redistest.Name(b)
	release := redis.NewScript(`if redis.call("GET", KEYS[1]) == ARGV[1] then return redis.call("DEL", KEYS[1]) end return 0`)
	require.NoError(b, release.Load(ctx, rdb).Err())
	return func() {
		token := rand.Text()
		err := rdb.SetNX(ctx, key, token, 15*time.Second).Err()
		if err == nil {
			err = release.EvalSha(ctx, rdb, []string{key}, token).Err()
		}
		if err != nil {
			b.Fatal(err)
		}
	}
}

// cancellable is a context as a request has one.
func cancellable(b *testing.B) context.Context {
	ctx, cancel := context.WithCancel(b.Context())
	b.Cleanup(cancel)
	return ctx
}
