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
	Crew      crew // if a worker has it
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
