package report

import (
	"encoding/json"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/cmd/sluice/inspect"
)

// Queue is a queue.
type Queue struct {
	Name            string  `json:"name"`
	NameBase64      string  `json:"name_base64,omitempty"`
	Due             int64   `json:"due"`
	Scheduled       int64   `json:"scheduled"`
	Leased          int64   `json:"leased"`
	Dead            int64   `json:"dead"`
	Done            int64   `json:"done"`      // finished tasks that are remembered
	Finished        int64   `json:"finished"`  // this and the next five begin at 0 after a day without work
	Discarded       int64   `json:"discarded"` // of the finished ones
	Retried         int64   `json:"retried"`
	Buried          int64   `json:"buried"`
	Lost            int64   `json:"lost"`
	Trimmed         int64   `json:"trimmed"`
	Rates           any     `json:"rates,omitempty"` // from top's second frame on
	Workers         int     `json:"workers"`
	WorkerSeen      *string `json:"worker_seen"` // when a worker was last seen; null if none was for a day
	LatenessSeconds float64 `json:"lateness_seconds"`
	NextDue         *string `json:"next_due"`
	Paused          bool    `json:"paused"`
	PausedUntil     *string `json:"paused_until"`
	Limits          *Limits `json:"limits"`
	Waiting         int     `json:"waiting"`       // how many clients wait for tasks
	GroupWaiting    int64   `json:"group_waiting"` // how many tasks wait in their groups
	Error           string  `json:"error,omitempty"`
}

// MarshalJSON leaves out the figures of a queue that cannot be read: they are not 0.
func (q Queue) MarshalJSON() ([]byte, error) {
	if q.Error != "" {
		return json.Marshal(struct {
			Name       string `json:"name"`
			NameBase64 string `json:"name_base64,omitempty"`
			Error      string `json:"error"`
		}{q.Name, q.NameBase64, q.Error})
	}
	type plain Queue // without this method
	return json.Marshal(plain(q))
}

// Queues are the queues that a search has found. It may have been ended before it was complete.
type Queues struct {
	Queues   []Queue `json:"queues"`
	Complete bool    `json:"complete"`
}

// Of returns what is said of a queue, or why that is not known.
func Of(name string, s sluice.Stats, err error) Queue {
	q := Queue{
		Due: s.Due, Scheduled: s.Scheduled, Leased: s.Leased, Dead: s.Dead,
		Done: s.Done, Finished: s.Finished, Discarded: s.Discarded, Retried: s.Retried, Buried: s.Buried, Lost: s.Lost, Trimmed: s.Trimmed,
		Workers: s.Workers, WorkerSeen: Time(s.WorkerSeen),
		LatenessSeconds: s.Lateness.Seconds(), NextDue: Time(s.NextDue), Paused: s.Paused, PausedUntil: Time(s.PausedUntil),
		Limits: LimitsOf(s), Waiting: s.Waiting, GroupWaiting: s.GroupWaiting,
	}
	q.Name, q.NameBase64 = Bytes(name)
	if err != nil {
		q.Error = Escape(err.Error())
	}
	return q
}

// Limits are a queue's limits. What is 0 is not limited.
type Limits struct {
	Running    int     `json:"running"`
	Rate       int     `json:"rate"` // in so many seconds
	PerSeconds float64 `json:"per_seconds"`
	Burst      int     `json:"burst"`
	PerGroup   int     `json:"per_group"` // of a group in play; 0 for one
	AtLimit    bool    `json:"at_limit"`  // as many are leased as may run
}

// LimitsOf returns the limits in the state of a queue; nil for none.
func LimitsOf(s sluice.Stats) *Limits {
	if s.Limits == (sluice.Limits{}) {
		return nil
	}
	l := s.Limits
	return &Limits{l.Running, l.Rate, l.Per.Seconds(), l.Burst, l.PerGroup, inspect.AtLimit(s)}
}
