package web

import (
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/sluice-go/sluice"
)

// taskData is what the page of a task shows.
type taskData struct {
	Queue   string
	Task    sluice.Entry
	Gone    bool // it was here when the page was opened
	Headers []header
	Payload payload
	URL     string
}

type header struct{ Key, Value string }

// Due is when the task is or was due; zero if that is not known.
func (d taskData) Due() time.Time {
	switch d.Task.State {
	case sluice.Scheduled, sluice.Due:
		return d.Task.Time()
	}
	return d.Task.Due
}

func (d taskData) IsDead() bool      { return d.Task.State == sluice.Dead }
func (d taskData) IsDue() bool       { return d.Task.State == sluice.Due }
func (d taskData) IsLeased() bool    { return d.Task.State == sluice.Leased }
func (d taskData) IsScheduled() bool { return d.Task.State == sluice.Scheduled }

// showTask shows a task. With ?payload=1 it shows the payload too.
func (p *page) showTask(v *visit) error {
	s := p.watch.of(v.queue())
	q, err := s.open(v.ctx)
	if err != nil {
		return err
	}
	data := taskData{Queue: s.name, URL: p.taskURL(s.name, v.task())}
	data.Task, err = q.Get(v.ctx, v.task())
	if isNotFound(err) && v.isLive() {
		data.Gone, data.Task.ID = true, v.task()
		return v.render(http.StatusOK, "task", shown(v.task()), "queues", data)
	}
	if err != nil {
		return err
	}
	for _, key := range slices.Sorted(maps.Keys(data.Task.Header)) {
		data.Headers = append(data.Headers, header{key, data.Task.Header[key]})
	}
	data.Payload = newPayload(data.Task.Payload, v.r.URL.Query().Get("payload") == "1")
	return v.render(http.StatusOK, "task", shown(v.task()), "queues", data)
}
