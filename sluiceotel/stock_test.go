package sluiceotel_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
)

// TestTelemetry_ReportsStock of the items that are named, where they have one.
func TestTelemetry_ReportsStock(t *testing.T) {
	r := newTelemetry(t)
	s := redistest.Start(t)
	q := r.queue(t, s.Client(t))
	registration, err := r.ObserveStock(q, "phone", "unknown", "ph\xf6ne")
	require.NoError(t, err)
	require.NoError(t, q.SetStock(t.Context(), "phone", 10))
	require.NoError(t, q.SetStock(t.Context(), "not named", 10))
	require.NoError(t, q.SetStock(t.Context(), "ph\xf6ne", 1))
	for _, id := range []string{"a", "b", "c"} {
		_, err := q.Enqueue(t.Context(), sluice.Task{ID: id, Take: sluice.Take{Item: "phone", Units: 2}})
		require.NoError(t, err)
	}
	_, err = q.Pop(t.Context(), 1)
	require.NoError(t, err)
	stock := func() map[string]float64 {
		found := map[string]float64{}
		for point, value := range r.points(t) {
			if strings.HasPrefix(point, "sluice.queue.stock{") {
				found[point[strings.Index(point, "sluice.stock"):]] = value
			}
		}
		return found
	}
	require.Equal(t, map[string]float64{
		"sluice.stock.item=phone,sluice.stock.state=left}": 4, "sluice.stock.item=phone,sluice.stock.state=held}": 4,
		"sluice.stock.item=phone,sluice.stock.state=sold}":      2,
		"sluice.stock.item=ph\uFFFDne,sluice.stock.state=left}": 1, "sluice.stock.item=ph\uFFFDne,sluice.stock.state=held}": 0,
		"sluice.stock.item=ph\uFFFDne,sluice.stock.state=sold}": 0,
	}, stock())
	s.Pause(t)
	var all metricdata.ResourceMetrics
	require.Error(t, r.reader.Collect(t.Context(), &all))
	s.Resume(t)
	require.NoError(t, registration.Unregister())
	require.Empty(t, stock())
}
