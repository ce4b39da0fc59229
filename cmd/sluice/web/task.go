package web

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/sluice-go/sluice"
)

// taskData is what the page of a task shows.
type taskData struct {
	Queue     string
	Task      sluice.TaskInfo
	Gone      bool // it was here when the page was opened
	Headers   []header
	HeaderCut bool    // there is more of it than is shown
	Payload   payload // or the result, if it is done
	URL       string
	Crew      crew   // if a worker has it
	InPlay    inPlay // if it waits
}

// inPlay is what holds up a task that waits in its group: tasks of the group that are in play.
type inPlay struct {
	Tasks  []sluice.TaskInfo
	Looked int  // how many of each state were looked at, if not all; 0 for all
	Cut    bool // more were found than Tasks has
}

// mostInPlay is how many tasks in play a page shows.
const mostInPlay = 20

// newInPlay looks for the tasks of a group that are in play. The library lists them among others
// only, so that it looks at the first of each state: what holds up a group is leased, was due before
// what waits, or is soon tried again.
func newInPlay(ctx context.Context, q *sluice.Queue, group string) (found inPlay, err error) {
	for _, state := range []sluice.State{sluice.StateLeased, sluice.StateDue, sluice.StateScheduled} {
		part, err := q.List(ctx, state, sluice.TaskInfo{}, mostPerPage, sluice.WithoutPayloads())
		if err != nil {
			return found, err
		}
		if len(part) == mostPerPage {
			found.Looked = mostPerPage
		}
		for _, t := range part {
			if t.Group == group && len(found.Tasks) < mostInPlay {
				found.Tasks = append(found.Tasks, t)
			} else if t.Group == group {
				found.Cut = true
			}
		}
	}
	return found, nil
}

type header struct{ Key, Value string }

// What names what Payload is.
func (d taskData) What() string {
	if d.IsDone() {
		return "result"
	}
	return "payload"
}

func (d taskData) IsDead() bool      { return d.Task.State == sluice.StateDead }
func (d taskData) IsDone() bool      { return d.Task.State == sluice.StateDone }
func (d taskData) IsDue() bool       { return d.Task.State == sluice.StateDue }
func (d taskData) IsLeased() bool    { return d.Task.State == sluice.StateLeased }
func (d taskData) IsScheduled() bool { return d.Task.State == sluice.StateScheduled }
func (d taskData) IsWaiting() bool   { return d.Task.State == sluice.StateWaiting }

const (
	// mostStored is in how many bytes the payload and the header may be stored of which a page
	// shows something.
	mostStored = 4 << 20
	// mostHeader is how many bytes of a header a page shows.
	mostHeader = 64 << 10
)

// showTask shows a task. With ?payload=1 it shows the payload, or the result, too.
func (p *page) showTask(v *visit) error {
	s, id, asked := p.watch.of(v.queue()), v.task(), v.r.URL.Query().Get("payload") == "1"
	key := lookKey{s.name, fmt.Sprint(v.isLive(), asked, id)}
	data, err := p.tasks.get(v.ctx, key, func(ctx context.Context) (taskData, error) {
		if v.isLive() {
			return p.task(ctx, s, id, asked, sluice.WithoutPayloads())
		}
		select { // whatever is read is in memory several times
		case p.large <- struct{}{}:
		case <-ctx.Done():
			return taskData{}, context.Cause(ctx)
		}
		defer func() { <-p.large }()
		return p.task(ctx, s, id, asked, sluice.WithPayloadsUpTo(mostStored))
	})
	if isNotFound(err) && v.isLive() {
		data, err = taskData{Queue: s.name, URL: p.taskURL(s.name, id), Task: sluice.TaskInfo{Entry: sluice.Entry{ID: id}}, Gone: true}, nil
	}
	if err != nil {
		return err
	}
	if data.Task.Worker != "" {
		data.Crew = s.crew(v.ctx)
	}
	return v.render(http.StatusOK, "task", shown(id), "queues", data)
}

// task looks at a task, and keeps no more of its payload, result and header than is shown.
func (p *page) task(ctx context.Context, s *series, id string, asked bool, option sluice.ReadOption) (data taskData, err error) {
	q, err := s.open()
	if err != nil {
		return data, err
	}
	data = taskData{Queue: s.name, URL: p.taskURL(s.name, id)}
	if data.Task, err = q.Get(ctx, id, option); err != nil {
		return data, err
	}
	if data.IsWaiting() {
		if data.InPlay, err = newInPlay(ctx, q, data.Task.Group); err != nil {
			return data, err
		}
	}
	size := 0
	for _, key := range slices.Sorted(maps.Keys(data.Task.Header)) {
		value := data.Task.Header[key]
		if size += len(key) + len(value); size > mostHeader {
			data.HeaderCut = true
			break
		}
		data.Headers = append(data.Headers, header{strings.Clone(key), strings.Clone(value)})
	}
	data.Payload = newPayload(data.Task.Payload, asked)
	if data.IsDone() {
		data.Payload = newPayload(data.Task.Result, asked)
	}
	data.Task.Payload, data.Task.Result = nil, nil
	data.Task.Header, data.Task.Kind = nil, strings.Clone(data.Task.Kind)
	return data, nil
}
