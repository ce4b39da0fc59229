package sluice

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-go/sluice/internal/notify"
	"github.com/sluice-go/sluice/internal/redisexec"
	"github.com/sluice-go/sluice/internal/taskloop"
)

// source is a Queue as a worker's run loop sees it: a taskloop.Source. It builds the requests and
// decodes the replies.
type source struct {
	queue    *Queue
	lease    time.Duration
	refused  context.CancelCauseFunc // ends the run
	log      *slog.Logger
	canceled cancellations
	heard    atomic.Pointer[layout] // that canceled was told of last
}

// cancellations brings the IDs of tasks that are cancelled while they are leased, in any shard, also of a
// layout to which the queue is moved later.
type cancellations struct {
	mu       sync.Mutex // guards what follows
	listener *notify.Listener
	layout   *layout // whose channels are among those below
	channels []string
}

// join begins to listen, and returns where the IDs come.
func (c *cancellations) join(q *Queue) <-chan string {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.listener = q.client.notifier.JoinMessages()
	c.add(q, q.layout())
	return c.listener.Messages
}

// follow listens to the channels of a layout too. What was cancelled before is found out by the next extension.
func (c *cancellations) follow(q *Queue, l *layout) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.listener != nil && c.layout != l {
		c.add(q, l)
	}
}

// add adds the channels of a layout. The mutex is held.
func (c *cancellations) add(q *Queue, l *layout) {
	channels := slices.DeleteFunc(l.canceledChannels(), func(channel string) bool { return slices.Contains(c.channels, channel) })
	q.client.notifier.JoinAlso(c.listener, channels...)
	c.layout, c.channels = l, append(c.channels, channels...)
}

// leave ends the listening.
func (c *cancellations) leave(q *Queue) {
	c.mu.Lock()
	defer c.mu.Unlock()
	q.client.notifier.LeaveAll(c.channels, c.listener)
	c.listener = nil
}

// Shards returns how many shards the queue has.
func (s *source) Shards() int {
	l := s.queue.layout()
	if s.heard.Swap(l) != l {
		s.canceled.follow(s.queue, l)
	}
	return len(l.shards)
}

// ShardOf returns the shard of the task with an ID.
func (s *source) ShardOf(id string) int { return s.queue.layout().indexOf(id) }

// readyFor is how long a source tries to find out which layout its queue has, and to bring tasks to
// their new shards.
const readyFor = 5 * time.Second

// ready returns a shard, and the layout that has it, for operations on tasks. The error is
// taskloop.ErrMoved if the queue has another layout by now than the one of which the loop knows.
func (s *source) ready(ctx context.Context, shard int, tasks func() []string) (*layout, *shard, error) {
	l, known := s.queue.layout(), s.queue.known.Load()
	if shard >= len(l.shards) {
		return nil, nil, taskloop.ErrMoved
	}
	if known && l.from == nil && len(l.shards) == 1 {
		return l, l.shards[shard], nil
	}
	ids := tasks()
	if !known || l.from != nil {
		ctx, cancel := context.WithTimeout(ctx, readyFor)
		defer cancel()
		now, err := s.queue.ready(ctx, ids...)
		switch {
		case err != nil:
			if errors.Is(err, ErrInvalid) {
				s.refused(err)
			}
			return nil, nil, err
		case now != l:
			return nil, nil, taskloop.ErrMoved
		}
	}
	for _, id := range ids {
		if l.indexOf(id) != shard {
			return nil, nil, taskloop.ErrMoved
		}
	}
	return l, l.shards[shard], nil
}

// again takes the error of a request to a shard of a layout. If the shard was closed, it finds out
// which layout the queue has, and returns taskloop.ErrMoved.
func (s *source) again(ctx context.Context, l *layout, err error) error {
	if err == nil && s.queue.known.Load() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, readyFor)
	defer cancel()
	moved, err := s.queue.again(ctx, l, err)
	if moved {
		return taskloop.ErrMoved
	}
	if errors.Is(err, ErrInvalid) {
		s.refused(err)
	}
	return err
}

// againForAll returns again, for the errors of several requests to one shard: that it was closed is looked
// into once. A server that does not answer keeps the others' tasks for one try only.
func (s *source) againForAll(ctx context.Context, l *layout) func(err error) error {
	closed := sync.OnceValue(func() error { return s.again(ctx, l, redisexec.ErrWrongType) })
	return func(err error) error {
		if errors.Is(err, redisexec.ErrWrongType) {
			return closed()
		}
		return s.again(ctx, l, err)
	}
}

// Exchange sends reports and a claim in one pipeline. Tasks are finished by the script that
// claims. If the server rejects that, there is one script for each: to be denied what claims is
// no reason not to finish.
func (s *source) Exchange(shard int, reports []taskloop.Report, claim int) ([]taskloop.ReportResult, taskloop.ClaimResult) {
	results := make([]taskloop.ReportResult, len(reports))
	var claimed taskloop.ClaimResult
	l, sh, err := s.ready(context.Background(), shard, func() []string { return idsIn(reports) })
	if err == nil {
		claimed = s.exchange(sh, reports, claim, results)
	} else {
		for i := range results {
			results[i] = taskloop.ReportResult{Outcome: redisexec.NotSent, Err: err}
		}
		claimed = taskloop.ClaimResult{Outcome: redisexec.NotSent, Err: err}
		return results, claimed
	}
	again := s.againForAll(context.Background(), l)
	for i := range results {
		results[i].Err = again(results[i].Err)
	}
	claimed.Err = again(claimed.Err)
	return results, claimed
}

// idsIn returns the IDs of the tasks in reports.
func idsIn(reports []taskloop.Report) (ids []string) {
	for _, r := range reports {
		for i := range r.Items {
			ids = append(ids, r.Items[i].ID)
		}
	}
	return ids
}

// exchange is Exchange with a shard. It fills in the results.
func (s *source) exchange(sh *shard, reports []taskloop.Report, claim int, results []taskloop.ReportResult) taskloop.ClaimResult {
	requests := make([]redisexec.Request, 0, len(reports)+1)
	var finish []taskloop.Item
	joined := -1 // the report that the claim's script carries out
	for i, r := range reports {
		if r.Operation == taskloop.Finish && claim > 0 {
			finish, joined = r.Items, i
		} else {
			requests = append(requests, sh.reportRequest(r))
		}
	}
	if claim > 0 {
		requests = append(requests, sh.exchangeRequest(finish, claim, s.lease))
	}
	defer sh.executor.Suspect()()
	mark, sent := sh.watcher.mark(), time.Now()
	answers := sh.executor.SendAll(context.Background(), requests)
	claimed := answers[len(answers)-1]
	if joined >= 0 {
		finished := claimed
		if claimed.Outcome == redisexec.Rejected && !errors.Is(claimed.Err, redisexec.ErrWrongType) {
			apart := sh.executor.SendAll(context.Background(), []redisexec.Request{
				sh.exchangeRequest(finish, 0, 0), sh.exchangeRequest(nil, claim, s.lease),
			})
			finished, claimed = apart[0], apart[1]
		}
		answers = slices.Insert(answers, joined, finished)
	}
	for i, r := range reports {
		results[i] = decodeReport(answers[i], r)
		if r.Operation == taskloop.Bury {
			s.logDropped(droppedIn(answers[i].Value, len(r.Items)))
		}
	}
	if claim == 0 {
		return taskloop.ClaimResult{}
	}
	tasks := decodeClaim(claimed)
	if tasks.Outcome == redisexec.Done && tasks.Err == nil {
		sh.watcher.claimed(mark, sent, claimed.Value, len(tasks.Tasks))
		s.queue.noteClaimedTasks(tasks.Tasks)
		s.logDropped(droppedIn(claimed.Value, exchangeParts))
	}
	return tasks
}

// reportRequest returns the request of a report.
func (s *shard) reportRequest(r taskloop.Report) redisexec.Request {
	if r.Operation == taskloop.Finish {
		return s.exchangeRequest(r.Items, 0, 0)
	}
	script := reportScripts[r.Operation]
	keys, args := s.settleArgs(script, len(r.Items))
	for i := range r.Items {
		item := &r.Items[i]
		switch d := &item.Disposition; {
		case d.Next != nil:
			args = appendNext(args, item.ID, item.Receipt, d.Next)
		case d.Action == taskloop.Retry:
			args = appendGiveBack(args, item.ID, item.Receipt, d.Delay, attemptCounts)
		case d.Action == taskloop.Snooze:
			args = appendGiveBack(args, item.ID, item.Receipt, d.Delay, attemptDoesNotCount)
		case d.Action == taskloop.Release:
			args = appendGiveBack(args, item.ID, item.Receipt, 0, attemptDoesNotCount)
		case d.Action == taskloop.SetAside:
			args = appendBury(args, item.ID, item.Receipt, d.Reason)
		}
	}
	return script.Request(keys, args...)
}

var reportScripts = [...]*redisexec.Script{taskloop.GiveBack: scriptGiveBack, taskloop.Bury: scriptBury}

func decodeReport(answer redisexec.Result, r taskloop.Report) taskloop.ReportResult {
	result := taskloop.ReportResult{Outcome: answer.Outcome, Err: answer.Err}
	if answer.Outcome == redisexec.Done {
		decode := decodeAnswers
		if r.Operation == taskloop.Finish {
			decode = decodeFinished
		}
		result.Answers, result.Err = decode(answer.Value, len(r.Items))
	}
	return result
}

func decodeClaim(r redisexec.Result) taskloop.ClaimResult {
	result := taskloop.ClaimResult{Outcome: r.Outcome, Err: r.Err}
	if r.Outcome != redisexec.Done {
		return result
	}
	seen, tasks, err := decodeClaimedTasks(r.Value)
	if err != nil {
		result.Err = fmt.Errorf("claim: %w", err)
		return result
	}
	result.Tasks, result.More, result.Receipt, result.Head = tasks, seen > 0, receiptIn(r.Value), headIn(r.Value)
	return result
}

// Extend extends leases by one script.
func (s *source) Extend(ctx context.Context, shard int, items []taskloop.Item) taskloop.ReportResult {
	l, sh, err := s.ready(ctx, shard, func() []string { return idsIn([]taskloop.Report{{Items: items}}) })
	if err != nil {
		return taskloop.ReportResult{Outcome: redisexec.NotSent, Err: err}
	}
	r := sh.heartbeatRequest(s.lease, items...)
	r.Bounded = true
	reply, err := sh.executor.Run(ctx, r)
	if err = s.again(ctx, l, err); err != nil {
		return taskloop.ReportResult{Outcome: redisexec.Unknown, Err: err}
	}
	result := taskloop.ReportResult{Outcome: redisexec.Done}
	result.Answers, result.Err = decodeDone(reply.Value, len(items))
	return result
}

// Wait waits until a task of a shard may be due, or the queue has another layout.
func (s *source) Wait(ctx context.Context, shard int) error {
	l, sh, err := s.ready(ctx, shard, func() []string { return nil })
	if err == nil {
		err = sh.watcher.wait(ctx)
		if ctx.Err() == nil {
			err = s.again(ctx, l, err)
		}
	}
	if errors.Is(err, taskloop.ErrMoved) {
		return nil
	}
	return wrap("wait", s.queue.name, err)
}

// Start runs a job in a goroutine of the executor's.
func (s *source) Start(job redisexec.Job) { s.queue.executor.Start(job) }
