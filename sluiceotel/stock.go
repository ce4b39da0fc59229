package sluiceotel

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"

	"github.com/sluice-go/sluice"
)

// valid returns a text as exporters take it: one that is no UTF-8 would cost all metrics.
func valid(text string) string { return strings.ToValidUTF8(text, "\uFFFD") }

// ObserveStock reports how many units there are of items of a queue whenever metrics are collected:
// one Stock of each item, all at once, for two seconds at most. It ends with Unregister. Observe an
// item in one process, or all of them report the same numbers.
//
//	sluice.queue.stock  units by sluice.stock.item, and by sluice.stock.state: left, held and sold
//
// The items are named, since each has three series for ever. An item without a stock has no values.
// The error of one whose server does not answer is that of the collection. It is an error, too, if
// an item has no name or more than 256 bytes.
func (t *Telemetry) ObserveStock(q *sluice.Queue, items ...string) (metric.Registration, error) {
	units, err := t.meter.Int64ObservableGauge("sluice.queue.stock", metric.WithUnit("{unit}"), metric.WithDescription("Units of what is for sale."))
	if err != nil {
		return nil, fmt.Errorf("sluiceotel: %w", err)
	}
	observe := func(ctx context.Context, o metric.Observer) error {
		ctx, cancel := context.WithTimeout(ctx, observeFor)
		defer cancel()
		stocks, errs := make([]sluice.StockInfo, len(items)), make([]error, len(items))
		var all sync.WaitGroup
		for i, item := range items {
			all.Go(func() { stocks[i], errs[i] = q.Stock(ctx, item) })
		}
		all.Wait()
		for i, s := range stocks {
			if errors.Is(errs[i], sluice.ErrNotFound) {
				errs[i] = nil
				continue
			}
			if errs[i] != nil {
				continue
			}
			of := []attribute.KeyValue{system, semconv.MessagingDestinationName(valid(q.Name())), keyItem.String(valid(items[i]))}
			for state, n := range map[string]int64{"left": s.Left, "held": s.Held, "sold": s.Sold} {
				o.ObserveInt64(units, n, metric.WithAttributes(append(of, keyStockState.String(state))...))
			}
		}
		return errors.Join(errs...)
	}
	registration, err := t.meter.RegisterCallback(observe, units)
	if err != nil {
		return nil, fmt.Errorf("sluiceotel: %w", err)
	}
	return registration, nil
}
