package web

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/cmd/sluice/inspect"
)

const (
	// perPage is how many tasks a page lists unless told, mostPerPage at the most.
	perPage, mostPerPage = 50, 250
	// longestID is how many bytes an ID may have that a page links to. The library's own have 512.
	longestID = 2000
)

// states are those that can be listed, in the order of their tabs.
var states = []sluice.State{sluice.StateDue, sluice.StateScheduled, sluice.StateWaiting, sluice.StateLeased, sluice.StateDead, sluice.StateDone}

// queueData is what the page of a queue shows.
type queueData struct {
	Name      string
	Err       string
	Stats     sluice.Stats
	Exists    bool // it has tasks, limits or workers, remembers finished tasks, or is paused
	Tabs      []tab
	Fates     []fate
	Crew      crew
	List      listing
	GoesOn    bool   // a change of all letters goes on where List begins
	NotFound  string // the ID that was searched for
	Wrong     string // what cannot be asked for
	ShowTasks bool
	Reasons   reasons // of the dead letters, if they are listed
	queueList
}

// stock is how many units of an item the queue sells.
type stock struct {
	Item string
	sluice.StockInfo
}

// mostStocks is of how many items a page shows the stocks.
const mostStocks = 100

// stocks returns those of a queue, in the order of their names.
func stocks(ctx context.Context, q *sluice.Queue) (list []stock, err error) {
	infos, err := q.Stocks(ctx)
	for _, item := range slices.Sorted(maps.Keys(infos)) {
		if len(list) < mostStocks {
			list = append(list, stock{item, infos[item]})
		}
	}
	return list, err
}

// queueList is a page of a queue's tasks.
type queueList struct {
	Tasks    []sluice.TaskInfo // without their payloads
	Stocks   []stock           // of the queue
	Next     string            // URL of the next page
	Searched int               // how many tasks were looked through for the filter, if not all
}

// HasErrors reports whether any of the tasks has failed before.
func (l queueList) HasErrors() bool {
	return slices.ContainsFunc(l.Tasks, func(t sluice.TaskInfo) bool { return t.Reason != "" })
}

// HasKinds and HasUnits report whether the kind of any of the tasks is known, and whether any takes
// units of what is for sale.
func (l queueList) HasKinds() bool {
	return slices.ContainsFunc(l.Tasks, func(t sluice.TaskInfo) bool { return t.Kind != "" })
}

func (l queueList) HasUnits() bool {
	return slices.ContainsFunc(l.Tasks, func(t sluice.TaskInfo) bool { return t.Take.Units != 0 })
}

// HasGroups reports whether any of the tasks is in a group.
func (l queueList) HasGroups() bool {
	return slices.ContainsFunc(l.Tasks, func(t sluice.TaskInfo) bool { return t.Group != "" })
}

// tab is a state with its figure.
type tab struct {
	State    sluice.State
	Title    string
	Count    int64
	Note     string
	Change   change
	Chart    chart
	URL      string
	Selected bool
}

// listing says which tasks are listed.
type listing struct {
	State sluice.State
	filter
	After sluice.TaskInfo
	N     int
}

// newListing reads a listing from a query or a form. What is not understood is left out.
func newListing(query url.Values) listing {
	l := listing{State: sluice.StateDue, N: perPage}
	for _, s := range states {
		if query.Get("state") == s.String() {
			l.State = s
		}
	}
	l.filter = readFilter(query, l.State)
	if n, err := strconv.Atoi(query.Get("n")); err == nil && n > 0 {
		l.N = min(n, mostPerPage)
	}
	score, value, _ := strings.Cut(query.Get("after"), "_")
	if s, err := strconv.ParseFloat(score, 64); err == nil {
		if name, err := fromFormValue(value); err == nil {
			l.After = inspect.At(l.State, s, name)
		}
	}
	return l
}

// Query writes the listing for a URL.
func (l listing) Query() string {
	query := url.Values{"state": {l.State.String()}}
	l.write(query)
	if l.N != perPage {
		query.Set("n", strconv.Itoa(l.N))
	}
	if a := l.AfterText(); a != "" {
		query.Set("after", a)
	}
	return "?" + query.Encode()
}

// AfterText writes the entry behind which the listing begins; empty if that is the first.
func (l listing) AfterText() string {
	if inspect.Place(l.After) == 0 && l.After.ID == "" {
		return ""
	}
	return strconv.FormatFloat(inspect.Place(l.After), 'g', -1, 64) + "_" + formValue(inspect.Name(l.After))
}

// IsDead reports whether dead letters are listed; the others say it of the other states.
func (l listing) IsDead() bool      { return l.State == sluice.StateDead }
func (l listing) IsDone() bool      { return l.State == sluice.StateDone }
func (l listing) IsDue() bool       { return l.State == sluice.StateDue }
func (l listing) IsLeased() bool    { return l.State == sluice.StateLeased }
func (l listing) IsScheduled() bool { return l.State == sluice.StateScheduled }
func (l listing) IsWaiting() bool   { return l.State == sluice.StateWaiting }

// showQueue shows a queue, and its tasks of one state. With ?id= it looks for a task, with ?in= for
// a group.
func (p *page) showQueue(v *visit) error {
	s := p.watch.of(v.queue())
	if wanted := v.r.URL.Query().Get("id"); wanted != "" {
		found, err := p.find(v, s, wanted)
		if err != nil {
			return err
		}
		if found != "" {
			http.Redirect(v.w, v.r, p.taskURL(s.name, found), http.StatusSeeOther)
			return nil
		}
	}
	if wanted := v.r.URL.Query().Get("in"); wanted != "" {
		group, err := p.findGroup(v, s, wanted)
		if err != nil {
			return err
		}
		http.Redirect(v.w, v.r, p.groupURL(s.name, group), http.StatusSeeOther)
		return nil
	}
	stats, err := s.stats.get(v.ctx)
	if err != nil {
		return err
	}
	status := http.StatusOK
	data := queueData{
		Name: s.name, Stats: stats, List: newListing(v.r.URL.Query()), ShowTasks: !v.isLive(),
		NotFound: v.r.URL.Query().Get("id"),
		Exists:   stats.Due+stats.Scheduled+stats.GroupWaiting+stats.Leased+stats.Dead+stats.Done > 0 || stats.Paused || stats.Limits != (sluice.Limits{}) || stats.Workers > 0,
	}
	data.Tabs, data.Fates = p.tabs(s, stats, data.List), fates(s.past.lastMinute(), stats)
	if stats.Workers > 0 || s.crews.hasAny() {
		data.Crew = s.crew(v.ctx)
	}
	data.GoesOn = v.r.URL.Query().Has("goes-on") && data.List.AfterText() != ""
	if data.ShowTasks {
		data.queueList, err = p.lists.get(v.ctx, lookKey{s.name, data.List.Query()}, func(ctx context.Context) (queueList, error) {
			return p.list(ctx, s, data.List)
		})
		if errors.Is(err, sluice.ErrInvalid) { // a time in the filter
			data.Wrong, status, err = why(err), http.StatusBadRequest, nil
		}
		if err != nil {
			return err
		}
		if data.List.IsDead() && stats.Dead > 0 {
			data.Reasons = s.whyDead(v.ctx, data.List)
		}
	}
	return v.render(status, "queue", shown(s.name), "queues", data)
}

// find returns the ID of the task that a visitor means: as written, or copied from a page; empty if
// there is none.
func (p *page) find(v *visit, s *series, wanted string) (string, error) {
	q, err := s.open()
	if err != nil {
		return "", err
	}
	for _, id := range meant(wanted) {
		_, err := q.Get(v.ctx, id, sluice.WithoutPayloads())
		if err == nil {
			return id, nil
		}
		if !isNotFound(err) {
			return "", err
		}
	}
	return "", nil
}

// findGroup returns the group that a visitor means, as find does; what was written if no task waits
// in any that may be meant.
func (p *page) findGroup(v *visit, s *series, wanted string) (string, error) {
	q, err := s.open()
	if err != nil {
		return "", err
	}
	for _, group := range meant(wanted) {
		first, err := q.List(v.ctx, sluice.StateWaiting, sluice.TaskInfo{}, 1, sluice.InGroup(group), sluice.WithoutPayloads())
		if err != nil {
			return "", err
		}
		if len(first) > 0 {
			return group, nil
		}
	}
	return wanted, nil
}

// meant returns what a visitor may mean by a text: it as written, or copied from a page.
func meant(wanted string) []string {
	names := slices.Compact([]string{wanted, strings.TrimSpace(wanted), fromShown(wanted)})
	return slices.DeleteFunc(names, func(name string) bool { return name == "" })
}

// tabs returns the states of a queue: what waits in groups and what is done only where there is
// any, or it is listed.
func (p *page) tabs(s *series, stats sluice.Stats, l listing) []tab {
	points, hour, now := s.past.lastMinute(), s.past.lastHour(), time.Now()
	var tabs []tab
	for i, figure := range []struct {
		title  string
		n      int64
		of     func(point) int64
		seldom bool
	}{
		{"Due", stats.Due, func(p point) int64 { return p.due }, false},
		{"Scheduled", stats.Scheduled, func(p point) int64 { return p.scheduled }, false},
		{"Waiting", stats.GroupWaiting, func(p point) int64 { return p.waiting }, true},
		{"Leased", stats.Leased, func(p point) int64 { return p.leased }, false},
		{"Dead", stats.Dead, func(p point) int64 { return p.dead }, false},
		{"Done", stats.Done, func(p point) int64 { return p.done }, true},
	} {
		if figure.seldom && figure.n == 0 && l.State != states[i] {
			continue
		}
		t := tab{
			State: states[i], Title: figure.title, Count: figure.n, Selected: l.State == states[i],
			Change: newChange(points, figure.of), Chart: newChart(figure.title, hour, now, figure.of),
			URL: p.queueURL(s.name) + listing{State: states[i], filter: l.filter, N: l.N}.Query(),
		}
		t.Note = note(t, stats, now)
		tabs = append(tabs, t)
	}
	return tabs
}

// note is the line below a figure.
func note(t tab, stats sluice.Stats, now time.Time) string {
	switch {
	case t.State == sluice.StateDue && stats.Due > 0:
		text := "oldest for " + span(stats.Lateness)
		if left := t.Change.drained(stats.Due); left > 0 && !stats.Paused {
			text += ", gone in " + span(left)
		}
		return text
	case t.State == sluice.StateDue:
		return "nothing waits"
	case t.State == sluice.StateScheduled && stats.Scheduled > 0 && !stats.NextDue.IsZero():
		return "next in " + span(max(0, stats.NextDue.Sub(now)))
	case t.State == sluice.StateWaiting && stats.GroupWaiting > 0:
		return "for others of their groups"
	case t.State == sluice.StateLeased && stats.Leased > 0:
		return "handed out"
	case t.State == sluice.StateDead && stats.Dead > 0:
		return "set aside"
	case t.State == sluice.StateDone && stats.Done > 0:
		return "remembered"
	}
	return "none"
}

// list reads the tasks of a page.
func (p *page) list(ctx context.Context, s *series, l listing) (list queueList, err error) {
	q, err := s.open()
	if err == nil {
		list.Stocks, err = stocks(ctx, q)
	}
	if err != nil {
		return list, err
	}
	var last *sluice.TaskInfo
	if !l.isSearched() {
		list.Tasks, err = l.part(ctx, q, l.After, l.N)
		if len(list.Tasks) == l.N {
			last = &list.Tasks[l.N-1]
		}
	} else {
		var matches func(sluice.TaskInfo) bool
		if matches, err = l.matcher(ctx, s); err != nil {
			return list, err
		}
		last, list.Searched, err = search(ctx, q, l, matches, p.busy, func(e sluice.TaskInfo) bool {
			list.Tasks = append(list.Tasks, e)
			return len(list.Tasks) < l.N
		})
	}
	if last == nil {
		list.Searched = 0 // all
		return list, err
	}
	l.After = *last
	list.Next = p.queueURL(s.name) + l.Query()
	return list, err
}

// FirstURL is that of the first page of the same listing, SelfURL that of this page.
func (d queueData) FirstURL(v view) string {
	l := d.List
	l.After = sluice.TaskInfo{}
	return v.queueURL(d.Name) + l.Query()
}

func (d queueData) SelfURL(v view) string { return v.queueURL(d.Name) + d.List.Query() }
