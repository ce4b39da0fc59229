package sluiceotel_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/trace"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/sluiceotel"
)

// hooks are those of both kinds.
type hooks struct {
	locks sluice.LockHooks
	tasks sluice.QueueHooks
}

// The cost of hooks: none, some that do nothing, and OpenTelemetry's, with all spans recorded and
// none exported.
//
//	go test -C sluiceotel -run '^$' -bench . -benchmem -count 10
func hooked(b *testing.B, run func(b *testing.B, rdb redis.UniversalClient, h *hooks)) {
	rdb := redis.NewClient(&redis.Options{Addr: redistest.Start(b).Addr})
	defer func() { _ = rdb.Close() }()
	telemetry, err := sluiceotel.New(sluiceotel.WithTracerProvider(trace.NewTracerProvider()),
		sluiceotel.WithMeterProvider(metric.NewMeterProvider(metric.WithReader(metric.NewManualReader()))))
	if err != nil {
		b.Fatal(err)
	}
	otel := hooks{telemetry.LockHooks(), telemetry.QueueHooks()}
	empty := hooks{sluice.LockHooks{
		LockAcquired: func(context.Context, sluice.LockAcquired) {}, LockReleased: func(sluice.LockReleased) {},
	}, sluice.QueueHooks{
		TasksSending: func(ctx context.Context, _ sluice.TasksSending) context.Context { return ctx },
		TasksSent:    func(context.Context, sluice.TasksSent) {}, TasksClaimed: func(sluice.TasksClaimed) {},
		TaskStarted:  func(ctx context.Context, _ sluice.TaskStarted) context.Context { return ctx },
		TaskFinished: func(context.Context, sluice.TaskFinished) {},
	}}
	for _, c := range []struct {
		name  string
		hooks *hooks
	}{{"none", nil}, {"empty", &empty}, {"otel", &otel}} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			run(b, rdb, c.hooks)
		})
	}
}

func lockers(b *testing.B, rdb redis.UniversalClient, h *hooks) *sluice.Locker {
	var opts []sluice.LockOption
	if h != nil {
		opts = append(opts, sluice.WithLockHooks(h.locks))
	}
	l, err := sluice.NewLocker(rdb, opts...)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = l.Close() })
	return l
}

func section(b *testing.B, l *sluice.Locker, name string) {
	k, err := l.Lock(context.Background(), name)
	if err == nil {
		err = k.Unlock(context.Background())
	}
	if err != nil {
		b.Error(err)
	}
}

func BenchmarkUncontended(b *testing.B) {
	hooked(b, func(b *testing.B, rdb redis.UniversalClient, h *hooks) {
		l := lockers(b, rdb, h)
		for b.Loop() {
			section(b, l, "uncontended")
		}
	})
}

func BenchmarkHandOver(b *testing.B) {
	hooked(b, func(b *testing.B, rdb redis.UniversalClient, h *hooks) {
		l := lockers(b, rdb, h)
		var all sync.WaitGroup
		b.ResetTimer()
		for i := range 64 {
			all.Go(func() {
				for n := i; n < b.N; n += 64 {
					section(b, l, "hot")
				}
			})
		}
		all.Wait()
	})
}

func BenchmarkWorker(b *testing.B) {
	hooked(b, func(b *testing.B, rdb redis.UniversalClient, h *hooks) {
		var opts []sluice.QueueOption
		if h != nil {
			opts = append(opts, sluice.WithQueueHooks(h.tasks))
		}
		q, err := sluice.NewQueue(rdb, redistest.Name(b), opts...)
		if err != nil {
			b.Fatal(err)
		}
		for first := 0; first < b.N; first += 1000 {
			tasks := make([]sluice.Task, min(1000, b.N-first))
			for i := range tasks {
				tasks[i].ID = fmt.Sprint("task-", first+i)
			}
			if _, err := q.EnqueueBatch(context.Background(), tasks); err != nil {
				b.Fatal(err)
			}
		}
		ctx, stop := context.WithCancel(context.Background())
		left := make(chan struct{}, b.N)
		w := sluice.Worker{Queue: q, Concurrency: 64, Handler: func(context.Context, sluice.Entry) error { left <- struct{}{}; return nil }}
		b.ResetTimer()
		ended := make(chan error, 1)
		go func() { ended <- w.Run(ctx) }()
		for range b.N {
			<-left
		}
		b.StopTimer()
		stop()
		if err := <-ended; err != nil {
			b.Error(err)
		}
	})
}
