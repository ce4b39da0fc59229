// Package exported_test compares what the tool exports with what a service observes.
package exported_test

import (
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	otelprometheus "go.opentelemetry.io/otel/exporters/prometheus"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/cmd/sluice/exporter"
	"github.com/sluice-go/sluice/sluiceotel"
)

// get asks a handler for its metrics.
func get(t *testing.T, h http.Handler) string {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
	require.Equal(t, http.StatusOK, w.Code)
	return w.Body.String()
}

// series returns the lines of metrics that tell of queues, without the labels that name the
// instrumentation.
func series(body string) (lines []string) {
	scope := regexp.MustCompile(`otel_scope_\w+="[^"]*",?`)
	for line := range strings.Lines(body) {
		if strings.HasPrefix(line, "sluice_queue_") {
			lines = append(lines, strings.Replace(scope.ReplaceAllString(strings.TrimSpace(line), ""), ",}", "}", 1))
		}
	}
	return lines
}

// TestMetrics_AreThoseOfObserve: the same series with the same labels, help, types and values, of each state
// that a queue can be in, so that one dashboard serves both.
func TestMetrics_AreThoseOfObserve(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Addr: miniredis.RunT(t).Addr()})
	t.Cleanup(func() { _ = rdb.Close() })
	q, err := sluice.NewQueue(rdb, "orders", sluice.WithRetention(time.Hour))
	require.NoError(t, err)
	ctx := t.Context()
	_, err = q.EnqueueBatch(ctx, []sluice.Task{{ID: "a"}, {ID: "b"}, {ID: "c"}, {ID: "d"}})
	require.NoError(t, err)
	es, err := q.Claim(ctx, 3, time.Minute)
	require.NoError(t, err)
	require.NoError(t, q.Dequeue(ctx, es[0]))
	require.NoError(t, q.Bury(ctx, "why", es[1]))
	require.NoError(t, q.SetLimits(ctx, sluice.Limits{Running: 5, Rate: 30, Per: time.Minute, Burst: 2}))
	require.NoError(t, q.Pause(ctx, 0))
	require.NoError(t, q.SetStock(ctx, "phone", 10))

	registry := prometheus.NewRegistry()
	reader, err := otelprometheus.New(otelprometheus.WithRegisterer(registry), otelprometheus.WithoutTargetInfo())
	require.NoError(t, err)
	telemetry, err := sluiceotel.New(sluiceotel.WithMeterProvider(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))))
	require.NoError(t, err)
	_, err = telemetry.Observe(q)
	require.NoError(t, err)
	_, err = telemetry.ObserveStock(q, "phone")
	require.NoError(t, err)

	observed, exported := get(t, promhttp.HandlerFor(registry, promhttp.HandlerOpts{})), get(t, exporter.New(rdb, exporter.Options{Stock: true}))
	lateness := regexp.MustCompile(`(?m)^(sluice_queue_lateness_seconds.*) \S+$`) // two looks at a clock
	want := series(lateness.ReplaceAllString(observed, "$1 late"))
	require.NotEmpty(t, want)
	have := series(lateness.ReplaceAllString(exported, "$1 late"))
	require.ElementsMatch(t, append(want, `sluice_queue_stuck{messaging_destination_name="orders",messaging_system="sluice"} 0`), have)
	for line := range strings.Lines(observed) { // help and type
		if strings.HasPrefix(line, "# ") && strings.Contains(line, " sluice_queue_") {
			require.Contains(t, exported, line)
		}
	}
	require.Contains(t, exported, "sluice_exporter_up 1")
	require.Contains(t, exported, "sluice_exporter_search_complete 1")
	require.Contains(t, exported, "sluice_exporter_unread_queues 0")
}
