package sluice

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/sluice-go/sluice/internal/redisexec"
	"github.com/sluice-go/sluice/internal/taskloop"
	"github.com/sluice-go/sluice/internal/watch"
	"github.com/sluice-go/sluice/internal/wire"
)

// workerSource is a Queue as a worker's run loop sees it: a taskloop.Source. It builds the requests and
// decodes the replies.
type workerSource struct {
	queue   *Queue
	lease   time.Duration
	id      string                  // of the worker
	refused context.CancelCauseFunc // ends the run
	log     *slog.Logger
}

// tellCanceled has the IDs of tasks told that are cancelled while they are leased, in any shard, and returns what ends that.
func (q *Queue) tellCanceled(to chan string) (end func()) {
	channels := make([]string, len(q.shards))
	for i, s := range q.shards {
		channels[i] = s.canceled
	}
	listener := q.client.Notifier.JoinMessages(to, channels...)
	return func() { q.client.Notifier.LeaveAll(channels, listener) }
}

// Shards returns how many shards the queue has.
func (s *workerSource) Shards() int { return len(s.queue.shards) }

// ShardOf returns the shard of the task with an ID.
func (s *workerSource) ShardOf(id string) int { return s.queue.indexOf(id) }

// readyFor is how long a source tries to find out how many shards the queue has.
const readyFor = 5 * time.Second

// ready is Queue.ready. What it finds out may end the run.
func (s *workerSource) ready() error {
	if len(s.queue.shards) == 1 || s.queue.known.Load() {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), readyFor)
	defer cancel()
	return s.refuse(s.queue.ready(ctx))
}

// explain is Queue.explain. What it finds out may end the run.
func (s *workerSource) explain(err error) error {
	if !errors.Is(err, redisexec.ErrWrongType) {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), readyFor)
	defer cancel()
	return s.refuse(s.queue.explain(ctx, err))
}

// refuse ends the run if the queue has another number of shards.
func (s *workerSource) refuse(err error) error {
	if errors.Is(err, ErrInvalid) {
		s.refused(wrap("run", s.queue.name, err))
	}
	return err
}

// Exchange sends reports and a claim in one pipeline. Tasks are finished by the script that
// claims. If the server rejects that, there is one script for each: to be denied what claims is
// no reason not to finish.
func (s *workerSource) Exchange(at int, reports []taskloop.Report, claim int) ([]taskloop.ReportResult, taskloop.ClaimResult) {
	results := make([]taskloop.ReportResult, len(reports))
	if err := s.ready(); err != nil {
		for i := range results {
			results[i] = taskloop.ReportResult{Outcome: redisexec.NotSent, Err: err}
		}
		return results, taskloop.ClaimResult{Outcome: redisexec.NotSent, Err: err}
	}
	claimed := s.exchange(s.queue.shards[at], reports, claim, results)
	claimed.Err = s.explain(claimed.Err)
	return results, claimed
}

// exchange is Exchange with a shard. It fills in the results. Nothing bounds it here: the run loop gives up the wait for it.
func (s *workerSource) exchange(sh *shard, reports []taskloop.Report, claim int, results []taskloop.ReportResult) taskloop.ClaimResult {
	requests := make([]redisexec.Request, 0, len(reports)+1)
	var finish []wire.Item // tasks that the claim's script finishes,
	joined := -1           // which this report is of
	for i, r := range reports {
		if r.Script == wire.ByExchange && claim > 0 {
			finish, joined = r.Items, i
		} else {
			requests = append(requests, sh.reportRequest(r.Items))
		}
	}
	if claim > 0 {
		requests = append(requests, sh.exchangeRequest(finish, claim, s.lease, s.id))
	}
	defer sh.executor.Suspect()()
	mark, sent := sh.watcher.Mark(), time.Now()
	answers := sh.executor.SendAll(context.Background(), requests)
	claimed := answers[len(answers)-1]
	if finish != nil && claimed.Outcome == redisexec.Rejected {
		apart := sh.executor.SendAll(context.Background(), []redisexec.Request{
			sh.exchangeRequest(finish, 0, 0, ""), sh.exchangeRequest(nil, claim, s.lease, s.id),
		})
		answers, claimed = slices.Insert(answers, joined, apart[0]), apart[1]
		finish, joined = nil, -1
	}
	var x wire.Exchanged[wire.Task]
	result := taskloop.ClaimResult{Outcome: claimed.Outcome, Err: claimed.Err}
	if claim > 0 && claimed.Outcome == redisexec.Done {
		x, result.Err = wire.Exchange(claimed.Value, len(finish), wire.AsTask)
	}
	for i, r := range reports {
		if i == joined {
			results[i] = taskloop.ReportResult{Outcome: result.Outcome, Answers: x.Answers, Err: result.Err}
			continue
		}
		results[i], answers = s.decodeReport(answers[0], r.Items), answers[1:]
	}
	switch {
	case claim == 0:
		return taskloop.ClaimResult{}
	case result.Err != nil:
		result.Err = fmt.Errorf("claim: %w", result.Err)
		return result
	}
	sh.watcher.Claimed(mark, sent, headAfterClaim(x.Next, x.Waiting, x.Place), len(x.Tasks) > 0)
	s.queue.noteClaimedTasks(x.Tasks)
	s.logDropped(x.Dropped)
	result.Tasks, result.More, result.Limited, result.Receipt, result.Head = x.Tasks, x.More, x.Limited, x.Receipt, x.Next
	return result
}

// decodeReport says what became of tasks whose leases were to end.
func (s *workerSource) decodeReport(answer redisexec.Result, items []wire.Item) taskloop.ReportResult {
	result := taskloop.ReportResult{Outcome: answer.Outcome, Err: answer.Err}
	if answer.Outcome == redisexec.Done {
		var dropped wire.Dropped
		result.Answers, dropped, result.Err = decodeSettled(answer.Value, items)
		s.logDropped(dropped)
	}
	return result
}

// Extend extends leases by one script.
func (s *workerSource) Extend(ctx context.Context, at int, items []wire.Item) taskloop.ReportResult {
	sh := s.queue.shards[at]
	r := sh.heartbeatRequest(s.lease, items...)
	r.Bounded = true
	reply, err := sh.executor.Run(ctx, r)
	if err != nil {
		return taskloop.ReportResult{Outcome: redisexec.Unknown, Err: err}
	}
	result := taskloop.ReportResult{Outcome: redisexec.Done}
	result.Answers, result.Err = wire.Done(reply.Value, len(items))
	return result
}

// Wait waits until a task of a shard may be due.
func (s *workerSource) Wait(ctx context.Context, at int) error {
	err := s.ready()
	if err == nil {
		_, errs := watch.Wait(ctx, s.queue.options.poll, s.queue.shards[at].watcher)
		err = s.explain(joinErrors(errs))
	}
	return wrap("wait", s.queue.name, err)
}

// Start runs a job in a goroutine of the executor's.
func (s *workerSource) Start(job redisexec.Job) { s.queue.executor.Start(job) }
