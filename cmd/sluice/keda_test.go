package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/cmd/sluice/exporter"
	"github.com/sluice-go/sluice/internal/systest"
)

// scaledObject is what the simulation reads of deploy/keda/scaledobject.yaml.
type scaledObject struct {
	Spec struct {
		MinReplicaCount int `yaml:"minReplicaCount"`
		MaxReplicaCount int `yaml:"maxReplicaCount"`
		PollingInterval int `yaml:"pollingInterval"`
		CooldownPeriod  int `yaml:"cooldownPeriod"`
		Advanced        struct {
			Autoscaler struct {
				Behavior struct {
					ScaleDown struct {
						Window   int `yaml:"stabilizationWindowSeconds"`
						Policies []struct {
							Type          string
							Value         int
							PeriodSeconds int `yaml:"periodSeconds"`
						}
					} `yaml:"scaleDown"`
				}
			} `yaml:"horizontalPodAutoscalerConfig"`
		}
		Triggers []trigger
	}
}

type trigger struct {
	Type     string
	Metadata map[string]string
}

func keda(t *testing.T) scaledObject {
	t.Helper()
	documents := documentsOf[scaledObject](t, "deploy/keda/scaledobject.yaml")
	require.Len(t, documents, 1)
	return documents[0]
}

// cluster plays KEDA, the autoscaler and the pods of a Deployment.
type cluster struct {
	*testing.T
	object scaledObject
	api    http.Handler
	queue  *sluice.Queue
	work   func(ctx context.Context, id string) error

	pods        []func() // what stops each
	ended       sync.WaitGroup
	lastActive  time.Time
	wanted      []recommendation // by the autoscaler, the newest last
	peak, begun int              // the most pods at a time; how often there was one after none
}

// recommendation is how many replicas the autoscaler has wanted and left at a time.
type recommendation struct {
	at            time.Time
	wanted, stood int
}

// figure asks for a trigger's figure, as the scaler "metrics-api" does.
func (c *cluster) figure(t trigger) float64 {
	require.Equal(c, "metrics-api", t.Type)
	u, err := url.Parse(t.Metadata["url"])
	require.NoError(c, err)
	request := httptest.NewRequestWithContext(c.Context(), http.MethodGet, u.Path, nil)
	request.Host = "127.0.0.1:9478"
	reply := httptest.NewRecorder()
	c.api.ServeHTTP(reply, request)
	require.Equal(c, http.StatusOK, reply.Code, reply.Body)
	var figures map[string]any
	require.NoError(c, json.Unmarshal(reply.Body.Bytes(), &figures))
	value, isNumber := figures[t.Metadata["valueLocation"]].(float64)
	require.True(c, isNumber, "%s: %s", t.Metadata["valueLocation"], reply.Body)
	return value
}

// number returns a number of a trigger's metadata.
func (c *cluster) number(t trigger, name string) float64 {
	n, err := strconv.ParseFloat(t.Metadata[name], 64)
	require.NoError(c, err, name)
	return n
}

// look is one look of KEDA and one of the autoscaler. KEDA wakes the first pod and ends the last
// one. In between the autoscaler has the largest of what the triggers want.
func (c *cluster) look() {
	now, spec, active, want := time.Now(), c.object.Spec, false, 1
	for _, t := range spec.Triggers {
		value, target := c.figure(t), c.number(t, "targetValue")
		active = active || value > c.number(t, "activationTargetValue")
		n := len(c.pods)
		if n > 0 && math.Abs(value/(target*float64(n))-1) > 0.1 { // the autoscaler's tolerance
			n = int(math.Ceil(value / target))
		}
		want = max(want, n)
	}
	cooldown := time.Duration(spec.CooldownPeriod) * time.Second
	switch {
	case active:
		c.lastActive = now
		if len(c.pods) == 0 {
			c.scale(max(1, spec.MinReplicaCount))
			return
		}
	case spec.MinReplicaCount == 0 && now.Sub(c.lastActive) > cooldown:
		c.scale(0)
	}
	if len(c.pods) > 0 {
		c.autoscale(now, min(want, spec.MaxReplicaCount))
	}
}

// autoscale follows what is wanted: up by the autoscaler's default, which is four pods or twice as
// many in 15 seconds; down to the most that was wanted in the window, and by the policies.
func (c *cluster) autoscale(now time.Time, want int) {
	n, down := len(c.pods), c.object.Spec.Advanced.Autoscaler.Behavior.ScaleDown
	c.wanted = append(c.wanted, recommendation{now, want, n})
	lowest := n
	for _, p := range down.Policies {
		require.Equal(c, "Percent", p.Type)
		stood := n
		for _, r := range c.wanted {
			if now.Sub(r.at) < time.Duration(p.PeriodSeconds)*time.Second {
				stood = max(stood, r.stood)
			}
		}
		lowest = min(lowest, int(float64(stood)*(1-float64(p.Value)/100)))
	}
	for _, r := range c.wanted {
		if now.Sub(r.at) <= time.Duration(down.Window)*time.Second && want < n {
			want = min(n, max(want, r.wanted))
		}
	}
	c.scale(min(max(want, lowest), max(2*n, n+4)))
}

// scale starts and stops pods. A pod that stops has Grace for its handlers, and its goroutine ends
// when its Worker has returned: stop waits for all of them.
func (c *cluster) scale(n int) {
	if n > 0 && len(c.pods) == 0 {
		c.begun++
	}
	for len(c.pods) < n {
		ctx, stop := context.WithCancel(c.Context())
		c.pods = append(c.pods, stop)
		w := &sluice.Worker{
			Queue: c.queue, Concurrency: 16, Logger: slog.New(slog.DiscardHandler),
			Handler: func(ctx context.Context, e sluice.Entry) error { return c.work(ctx, e.ID) },
		}
		c.ended.Go(func() { _ = w.Run(ctx) })
	}
	for len(c.pods) > n {
		c.pods[0]() // the oldest: the one with the long tasks
		c.pods = c.pods[1:]
	}
	c.peak = max(c.peak, n)
}

// run looks once a polling interval, for a time.
func (c *cluster) run(d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); {
		c.look()
		time.Sleep(time.Duration(c.object.Spec.PollingInterval) * time.Second) // of the bubble
	}
}

// stop ends all pods and waits for them.
func (c *cluster) stop() {
	c.scale(0)
	c.ended.Wait()
}

// inCluster runs a test with the workers of the queue orders scaled by triggers of the example.
func inCluster(t *testing.T, triggers int, work func(ctx context.Context, id string) error, test func(c *cluster)) {
	systest.Bubble(t, func(t *testing.T, _ *miniredis.Miniredis, rdb redis.UniversalClient) {
		q, err := sluice.NewQueue(rdb, "orders")
		require.NoError(t, err)
		c := &cluster{T: t, object: keda(t), api: exporter.New(rdb, exporter.Options{}), queue: q, work: work}
		c.object.Spec.Triggers = c.object.Spec.Triggers[:triggers]
		defer c.stop()
		test(c)
		synctest.Wait()
	})
}

// enqueue adds n tasks whose IDs begin with a text, due after a time.
func (c *cluster) enqueue(n int, prefix string, delay time.Duration) {
	tasks := make([]sluice.Task, n)
	for i := range tasks {
		tasks[i] = sluice.Task{ID: fmt.Sprint(prefix, i), Delay: delay}
	}
	_, err := c.queue.EnqueueBatch(c.Context(), tasks)
	require.NoError(c, err)
}

// TestDeploy_KedaScalesFromZeroAndBack plays the example: from 0 replicas to what 700 tasks need,
// back to 0 when the last one has ended, also one that takes far longer than the cooldown, and from
// 0 again for a task that was put off. No handler is interrupted, and no task is left behind.
func TestDeploy_KedaScalesFromZeroAndBack(t *testing.T) {
	var mu sync.Mutex // guards handled and interrupted
	handled, interrupted := map[string]int{}, 0
	work := func(ctx context.Context, id string) error {
		time.Sleep(5 * time.Second)
		if id == "long-0" {
			select {
			case <-ctx.Done():
				mu.Lock()
				defer mu.Unlock()
				interrupted++
				return ctx.Err()
			case <-time.After(20 * time.Minute):
			}
		}
		mu.Lock()
		defer mu.Unlock()
		handled[id]++
		return nil
	}
	inCluster(t, 2, work, func(c *cluster) {
		c.run(time.Minute)
		require.Zero(c, c.peak, "an empty queue has woken a worker")
		c.enqueue(1, "later-", 2*time.Hour)
		c.run(time.Minute)
		require.Zero(c, c.peak, "a task has woken a worker before its time")

		c.enqueue(700, "order-", 0)
		c.run(10 * time.Minute)
		require.Greater(c, c.peak, 2)
		require.LessOrEqual(c, c.peak, c.object.Spec.MaxReplicaCount)
		c.run(10 * time.Minute)
		require.Empty(c, c.pods, "idle workers stay")

		c.enqueue(1, "long-", 0)
		c.run(19 * time.Minute)
		require.Len(c, c.pods, 1, "the worker of a task that runs has gone")
		c.run(10 * time.Minute)
		require.Empty(c, c.pods)

		c.run(2 * time.Hour)
		require.Empty(c, c.pods)
		require.Equal(c, 3, c.begun, "the task that was put off has woken a worker")
		s, err := c.queue.Stats(c.Context())
		require.NoError(c, err)
		require.Zero(c, s.Due+s.Scheduled+s.Leased+s.Dead)
	})
	require.Len(t, handled, 702)
	for id, times := range handled {
		require.Equal(t, 1, times, id)
	}
	require.Zero(t, interrupted)
}

// TestDeploy_KedaByDueAloneInterrupts: what the second trigger of the example is there for.
func TestDeploy_KedaByDueAloneInterrupts(t *testing.T) {
	interrupted := 0
	work := func(ctx context.Context, _ string) error { // one task: no two at a time
		select {
		case <-ctx.Done():
			interrupted++
			return ctx.Err()
		case <-time.After(20 * time.Minute):
			return nil
		}
	}
	inCluster(t, 1, work, func(c *cluster) {
		c.enqueue(1, "long-", 0)
		c.run(time.Hour)
		require.Greater(c, interrupted, 5)
		s, err := c.queue.Stats(c.Context())
		require.NoError(c, err)
		require.EqualValues(c, 1, s.Due+s.Scheduled+s.Leased, "it ends nevertheless")
	})
}
