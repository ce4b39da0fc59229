package web

import (
	"cmp"
	"context"
	"math/bits"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/cmd/sluice/inspect"
)

// queuesData is what the page of all queues shows.
type queuesData struct {
	Rows       []queueRow
	Filter     string
	Sort       string
	Columns    []column
	Found      int  // how many match the filter
	Hidden     int  // how many of them are not listed
	Unlooked   int  // of how many of these no figures were asked for: they are in no sum
	Incomplete bool // not all keys were looked at
	Totals     sluice.Stats
	Paused     int
	Unattended int // how many have due tasks and no worker,
	Deserted   int // and how many of them had one within a day
	Full       int // how many have due tasks and workers without room
	Stuck      int // how many have stuck handlers
	WorstURL   string
}

// IsWorstFirst reports whether the list is in the order that has those with trouble first.
func (d queuesData) IsWorstFirst() bool { return d.Sort == worstFirst }

// worstFirst is the order of the list unless a visitor asks for another one.
const worstFirst = "worst"

// queueRow is a queue in the list.
type queueRow struct {
	Name     string
	Stats    sluice.Stats
	Stuck    int64 // how many handlers of its workers are stuck, as far as is known
	Signs    []inspect.Sign
	Err      string
	Finished change
	Failed   change
	Change   change
	Chart    chart
}

// column is a head of the list by which it can be sorted.
type column struct {
	Name, Title string
	URL         string
	IsSorted    bool
	IsUp        bool // it is sorted upwards
	IsNumber    bool
}

// columns of the list, with the order of each. Names go up, figures down.
var columns = []struct {
	name, title string
	compare     func(a, b queueRow) int
}{
	{"name", "Queue", nil},
	{"due", "Due", func(a, b queueRow) int { return cmp.Compare(b.Stats.Due, a.Stats.Due) }},
	{"lateness", "Lateness", func(a, b queueRow) int { return cmp.Compare(b.Stats.Lateness, a.Stats.Lateness) }},
	{"scheduled", "Scheduled", func(a, b queueRow) int { return cmp.Compare(b.Stats.Scheduled, a.Stats.Scheduled) }},
	{"leased", "Leased", func(a, b queueRow) int { return cmp.Compare(b.Stats.Leased, a.Stats.Leased) }},
	{"dead", "Dead", func(a, b queueRow) int { return cmp.Compare(b.Stats.Dead, a.Stats.Dead) }},
	{"workers", "Workers", byWorkers},
	{"finished", "Finished", func(a, b queueRow) int { return cmp.Compare(b.Finished.PerSecond, a.Finished.PerSecond) }},
	{"failed", "Failed", func(a, b queueRow) int { return cmp.Compare(b.Failed.PerSecond, a.Failed.PerSecond) }},
}

// byWorkers has the queues come first that have due tasks and no worker, then the others with the
// fewest workers.
func byWorkers(a, b queueRow) int {
	urgent := func(r queueRow) int {
		if r.Err == "" && isUnattended(r.Stats) && r.Stats.Due > 0 {
			return 0
		}
		return 1
	}
	return cmp.Or(cmp.Compare(urgent(a), urgent(b)), cmp.Compare(a.Stats.Workers, b.Stats.Workers), cmp.Compare(b.Stats.Due, a.Stats.Due))
}

// byTrouble has the queues come first that need an operator: those that cannot be read, then by
// their worst sign, by how late they are, and those that fail or have dead letters. What changes
// with each look decides nothing, so that rows do not jump while they are read.
func byTrouble(a, b queueRow) int {
	isBad := func(is bool) int {
		if is {
			return 0
		}
		return 1
	}
	// Minutes are compared by their powers of two.
	late := func(r queueRow) int { return bits.Len64(uint64(r.Stats.Lateness / time.Minute)) }
	return cmp.Or(
		cmp.Compare(isBad(a.Err != ""), isBad(b.Err != "")),
		cmp.Compare(inspect.Worst(b.Signs), inspect.Worst(a.Signs)),
		cmp.Compare(late(b), late(a)),
		cmp.Compare(isBad(a.Failed.IsSome()), isBad(b.Failed.IsSome())),
		cmp.Compare(isBad(a.Stats.Dead > 0), isBad(b.Stats.Dead > 0)),
	)
}

// has, NoRoom and Late report whether the queue has the sign.
func (r queueRow) has(s inspect.Sign) bool { return slices.Contains(r.Signs, s) }
func (r queueRow) NoRoom() bool            { return r.has(inspect.SignNoRoom) }
func (r queueRow) Late() bool              { return r.has(inspect.SignLate) }

// showQueues shows all queues.
func (p *page) showQueues(v *visit) error {
	query := v.r.URL.Query()
	filter, sort := query.Get("q"), query.Get("sort")
	data, err := p.tables.get(v.ctx, lookKey{what: sort + " " + filter}, func(ctx context.Context) (queuesData, error) {
		return p.table(ctx, filter, sort)
	})
	if err != nil {
		return err
	}
	return v.render(http.StatusOK, "queues", "Queues", "queues", data)
}

// table looks at all queues that match a filter.
func (p *page) table(ctx context.Context, filter, sort string) (queuesData, error) {
	data := queuesData{Filter: filter, Sort: sort}
	f, err := p.watch.queues(ctx)
	if err != nil {
		return data, err
	}
	data.Incomplete = f.incomplete
	names := slices.DeleteFunc(f.names, func(name string) bool {
		return !strings.Contains(name, data.Filter) && !strings.Contains(name, fromShown(data.Filter))
	})
	data.Found = len(names)
	data.Unlooked = max(0, len(names)-mostLooked)
	data.Rows = p.rows(ctx, names[:len(names)-data.Unlooked])
	for _, row := range data.Rows {
		data.add(row)
	}
	data.sort(p)
	data.Rows = data.Rows[:min(len(data.Rows), mostQueues)]
	data.Hidden = data.Found - len(data.Rows)
	return data, nil
}

// rows asks for the figures of queues, some at a time.
func (p *page) rows(ctx context.Context, names []string) []queueRow {
	rows := make([]queueRow, len(names))
	places := make(chan struct{}, lookers)
	var group sync.WaitGroup
	for i, name := range names {
		places <- struct{}{}
		group.Go(func() {
			defer func() { <-places }()
			rows[i] = p.row(ctx, name)
		})
	}
	group.Wait()
	return rows
}

// row asks for the figures of a queue.
func (p *page) row(ctx context.Context, name string) queueRow {
	s := p.watch.of(name)
	row := queueRow{Name: name}
	var err error
	if row.Stats, err = s.stats.get(ctx); err != nil {
		_, why := explain(err)
		row.Err = why.What + ": " + why.Detail
	} else if row.Stats.Workers > 0 {
		row.Stuck = s.crew(ctx).Stuck()
	}
	row.Signs = inspect.Signs(row.Stats, row.Stuck)
	points := s.past.lastMinute()
	row.Finished, row.Failed = newRate(points, point.succeeded), newRate(points, point.failed)
	row.Change = newChange(points, point.sum)
	row.Chart = newChart("Due", s.past.lastHour(), time.Now(), func(p point) int64 { return p.due })
	return row
}

// add counts a queue.
func (d *queuesData) add(row queueRow) {
	d.Totals.Due += row.Stats.Due
	d.Totals.Scheduled += row.Stats.Scheduled
	d.Totals.GroupWaiting += row.Stats.GroupWaiting
	d.Totals.Leased += row.Stats.Leased
	d.Totals.Dead += row.Stats.Dead
	d.Totals.Done += row.Stats.Done
	if row.Stats.Paused {
		d.Paused++
	}
	if row.Err == "" && isUnattended(row.Stats) && row.Stats.Due > 0 {
		d.Unattended++
		if row.has(inspect.SignWorkersGone) {
			d.Deserted++
		}
	}
	if row.NoRoom() {
		d.Full++
	}
	if row.Stuck > 0 {
		d.Stuck++
	}
}

// sort sorts the list as the visitor asks.
func (d *queuesData) sort(p *page) {
	if d.Sort == "" {
		d.Sort = worstFirst
	}
	address := func(sort string) string {
		query := url.Values{"sort": {sort}}
		if d.Filter != "" {
			query.Set("q", d.Filter)
		}
		return p.options.Prefix + "/?" + query.Encode()
	}
	d.WorstURL = address(worstFirst)
	if d.IsWorstFirst() {
		slices.SortStableFunc(d.Rows, byTrouble)
	}
	for _, c := range columns {
		d.Columns = append(d.Columns, column{
			Name: c.name, Title: c.title, URL: address(c.name),
			IsSorted: c.name == d.Sort, IsUp: c.compare == nil || c.name == "workers", IsNumber: c.compare != nil,
		})
		if c.name == d.Sort && c.compare != nil {
			slices.SortStableFunc(d.Rows, c.compare)
		}
	}
}
