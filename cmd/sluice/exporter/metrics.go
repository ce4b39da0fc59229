package exporter

import (
	"context"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/sluice-go/sluice"
)

// The metrics have the names and labels that sluiceotel's Observe and ObserveStock have in Prometheus,
// so that one dashboard and one set of alert rules serve both.
var (
	ofQueue = []string{"messaging_destination_name", "messaging_system"}
	system  = "sluice"

	tasks = describe("sluice_queue_tasks", "Tasks in a queue.", "sluice_task_state")
	stock = describe("sluice_queue_stock", "Units of what is for sale.", "sluice_stock_item", "sluice_stock_state")
	stuck = describe("sluice_queue_stuck", "Handlers that run on beyond their timeouts, of all Workers that run.")

	up       = prometheus.NewDesc("sluice_exporter_up", "1 if Redis has told of its queues, else 0.", nil, nil)
	complete = prometheus.NewDesc("sluice_exporter_search_complete", "1 if the search for queues has looked at all keys, else 0.", nil, nil)
	unread   = prometheus.NewDesc("sluice_exporter_unread_queues", "Queues whose state cannot be read, which have no values.", nil, nil)
)

func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, append(labels, ofQueue...), nil)
}

// number is a metric that has one value for each queue. Without has, each queue has one.
type number struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	of   func(s sluice.Stats) float64
	has  func(s sluice.Stats) bool
}

var numbers = []number{
	{describe("sluice_queue_lateness_seconds", "For how long the first due task has been due."), prometheus.GaugeValue, func(s sluice.Stats) float64 { return s.Lateness.Seconds() }, nil},
	{describe("sluice_queue_workers", "Workers that run, in any process."), prometheus.GaugeValue, func(s sluice.Stats) float64 { return float64(s.Workers) }, nil},
	{describe("sluice_queue_waiting", "Clients that wait for tasks."), prometheus.GaugeValue, func(s sluice.Stats) float64 { return float64(s.Waiting) }, nil},
	{describe("sluice_queue_paused", "1 while the queue is paused."), prometheus.GaugeValue, func(s sluice.Stats) float64 { return flag(s.Paused) }, nil},
	{
		describe("sluice_queue_limit_running", "How many tasks may be leased at a time."), prometheus.GaugeValue,
		func(s sluice.Stats) float64 { return float64(s.Limits.Running) }, func(s sluice.Stats) bool { return s.Limits.Running > 0 },
	},
	{
		describe("sluice_queue_limit_rate_per_second", "How many tasks may be handed out in a second."), prometheus.GaugeValue,
		func(s sluice.Stats) float64 { return float64(s.Limits.Rate) / s.Limits.Per.Seconds() }, func(s sluice.Stats) bool { return s.Limits.Rate > 0 },
	},
	counter("finished", "Tasks that were finished, discarded or popped, in any process.", func(s sluice.Stats) int64 { return s.Finished }),
	counter("discarded", "Of the finished ones, those that were discarded or have expired.", func(s sluice.Stats) int64 { return s.Discarded }),
	counter("retried", "Tasks that failed and are to be tried again, in any process.", func(s sluice.Stats) int64 { return s.Retried }),
	counter("buried", "Tasks that were put among the dead letters, by any process.", func(s sluice.Stats) int64 { return s.Buried }),
	counter("lost", "Leases that ran out, in any process.", func(s sluice.Stats) int64 { return s.Lost }),
	counter("trimmed", "Dead letters that were removed by a limit.", func(s sluice.Stats) int64 { return s.Trimmed }),
}

func counter(what, help string, of func(s sluice.Stats) int64) number {
	return number{describe("sluice_queue_"+what+"_total", help), prometheus.CounterValue, func(s sluice.Stats) float64 { return float64(of(s)) }, nil}
}

func flag(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

// collector has the state of all queues as Prometheus collects it.
type collector struct{ *Exporter }

func (c collector) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{tasks, stock, stuck, up, complete, unread} {
		to <- d
	}
	for _, n := range numbers {
		to <- n.desc
	}
}

func (c collector) Collect(to chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	all, isComplete, err := c.look(ctx)
	to <- prometheus.MustNewConstMetric(up, prometheus.GaugeValue, flag(err == nil))
	if err != nil {
		return
	}
	to <- prometheus.MustNewConstMetric(complete, prometheus.GaugeValue, flag(isComplete))
	failed := 0
	var group errgroup.Group
	group.SetLimit(atOnce)
	seen := map[string]bool{}
	for _, f := range all {
		name := valid(f.name)
		if f.err != nil || seen[name] { // two names that differ in what is no UTF-8 only cannot both be told of
			failed++
			continue
		}
		seen[name] = true
		collectStats(to, name, f.stats)
		group.Go(func() error { // it ends with its replies; Wait waits for it
			c.collectMore(ctx, to, name, f)
			return nil
		})
	}
	_ = group.Wait()
	to <- prometheus.MustNewConstMetric(unread, prometheus.GaugeValue, float64(failed))
}

// collectStats tells what the Stats of a queue have.
func collectStats(to chan<- prometheus.Metric, name string, s sluice.Stats) {
	for state, n := range map[sluice.State]int64{
		sluice.StateDue: s.Due, sluice.StateScheduled: s.Scheduled, sluice.StateLeased: s.Leased, sluice.StateDead: s.Dead, sluice.StateDone: s.Done,
		sluice.StateWaiting: s.GroupWaiting,
	} {
		to <- prometheus.MustNewConstMetric(tasks, prometheus.GaugeValue, float64(n), state.String(), name, system)
	}
	for _, n := range numbers {
		if n.has == nil || n.has(s) {
			to <- prometheus.MustNewConstMetric(n.desc, n.kind, n.of(s), name, system)
		}
	}
}

// collectMore tells what takes scripts of its own: which handlers are stuck, and the stocks. What cannot be
// read has no value.
func (c collector) collectMore(ctx context.Context, to chan<- prometheus.Metric, name string, f found) {
	if f.stats.Workers == 0 {
		to <- prometheus.MustNewConstMetric(stuck, prometheus.GaugeValue, 0, name, system)
	} else if workers, err := f.queue.Workers(ctx); err == nil {
		sum := 0
		for _, w := range workers {
			sum += w.Stuck
		}
		to <- prometheus.MustNewConstMetric(stuck, prometheus.GaugeValue, float64(sum), name, system)
	}
	if !c.options.Stock {
		return
	}
	stocks, err := f.queue.Stocks(ctx)
	if err != nil {
		return
	}
	seen := map[string]bool{}
	for item, s := range stocks {
		if item = valid(item); seen[item] {
			continue
		}
		seen[item] = true
		for state, n := range map[string]int64{"left": s.Left, "held": s.Held, "sold": s.Sold} {
			to <- prometheus.MustNewConstMetric(stock, prometheus.GaugeValue, float64(n), item, state, name, system)
		}
	}
}

// valid returns a text as Prometheus takes it: one that is no UTF-8 would cost all metrics.
func valid(text string) string { return strings.ToValidUTF8(text, "\uFFFD") }
