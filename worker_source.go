package sluice

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/sluice-go/sluice/internal/notify"
	"github.com/sluice-go/sluice/internal/redisexec"
	"github.com/sluice-go/sluice/internal/taskloop"
	"github.com/sluice-go/sluice/internal/watch"
)

// source is a Queue as a worker's run loop sees it: a taskloop.Source. It builds the requests and
// decodes the replies.
type source struct {
	queue    *Queue
	lease    time.Duration
	refused  context.CancelCauseFunc // ends the run
	log      *slog.Logger
	canceled cancellations
}

// cancellations brings the IDs of tasks that are cancelled while they are leased, in any shard.
type cancellations struct {
	listener *notify.Listener
	channels []string
}

// join begins to listen, and returns where the IDs come.
func (c *cancellations) join(q *Queue) <-chan string {
	for _, s := range q.shards {
		c.channels = append(c.channels, s.canceled)
	}
	c.listener = q.client.Notifier.JoinMessages()
	q.client.Notifier.JoinAlso(c.listener, c.channels...)
	return c.listener.Messages
}

// leave ends the listening.
func (c *cancellations) leave(q *Queue) { q.client.Notifier.LeaveAll(c.channels, c.listener) }

// Shards returns how many shards the queue has.
func (s *source) Shards() int { return len(s.queue.shards) }

// ShardOf returns the shard of the task with an ID.
func (s *source) ShardOf(id string) int { return s.queue.indexOf(id) }

// readyFor is how long a source tries to find out how many shards the queue has.
const readyFor = 5 * time.Second

// ready is Queue.ready. What it finds out may end the run.
func (s *source) ready() error {
	if len(s.queue.shards) == 1 || s.queue.known.Load() {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), readyFor)
	defer cancel()
	return s.refuse(s.queue.ready(ctx))
}

// explain is Queue.explain. What it finds out may end the run.
func (s *source) explain(err error) error {
	if !errors.Is(err, redisexec.ErrWrongType) {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), readyFor)
	defer cancel()
	return s.refuse(s.queue.explain(ctx, err))
}

// refuse ends the run if the queue has another number of shards.
func (s *source) refuse(err error) error {
	if errors.Is(err, ErrInvalid) {
		s.refused(err)
	}
	return err
}

// Exchange sends reports and a claim in one pipeline. Tasks are finished by the script that
// claims. If the server rejects that, there is one script for each: to be denied what claims is
// no reason not to finish.
func (s *source) Exchange(shard int, reports []taskloop.Report, claim int) ([]taskloop.ReportResult, taskloop.ClaimResult) {
	results := make([]taskloop.ReportResult, len(reports))
	if err := s.ready(); err != nil {
		for i := range results {
			results[i] = taskloop.ReportResult{Outcome: redisexec.NotSent, Err: err}
		}
		return results, taskloop.ClaimResult{Outcome: redisexec.NotSent, Err: err}
	}
	claimed := s.exchange(s.queue.shards[shard], reports, claim, results)
	claimed.Err = s.explain(claimed.Err)
	return results, claimed
}

// exchange is Exchange with a shard. It fills in the results. Nothing bounds it here: the run loop gives up the wait for it.
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
	mark, sent := sh.watcher.Mark(), time.Now()
	answers := sh.executor.SendAll(context.Background(), requests)
	claimed := answers[len(answers)-1]
	if joined >= 0 {
		finished := claimed
		if claimed.Outcome == redisexec.Rejected {
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
			s.logDropped(decodeDropped(answers[i].Value, len(r.Items)))
		}
	}
	if claim == 0 {
		return taskloop.ClaimResult{}
	}
	if claimed.Outcome != redisexec.Done {
		return taskloop.ClaimResult{Outcome: claimed.Outcome, Err: claimed.Err}
	}
	x, err := decodeExchanged(claimed.Value, asTask)
	if err != nil {
		return taskloop.ClaimResult{Outcome: claimed.Outcome, Err: fmt.Errorf("claim: %w", err)}
	}
	sh.watcher.Claimed(mark, sent, watch.Head{Off: max(x.next, 0), Clients: x.waiting}, len(x.tasks) > 0)
	s.queue.noteClaimedTasks(x.tasks)
	s.logDropped(x.dropped)
	return taskloop.ClaimResult{Outcome: claimed.Outcome, Tasks: x.tasks, More: x.read > 0, Receipt: x.receipt, Head: x.next}
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

// Extend extends leases by one script.
func (s *source) Extend(ctx context.Context, shard int, items []taskloop.Item) taskloop.ReportResult {
	sh := s.queue.shards[shard]
	r := sh.heartbeatRequest(s.lease, items...)
	r.Bounded = true
	reply, err := sh.executor.Run(ctx, r)
	if err != nil {
		return taskloop.ReportResult{Outcome: redisexec.Unknown, Err: err}
	}
	result := taskloop.ReportResult{Outcome: redisexec.Done}
	result.Answers, result.Err = decodeDone(reply.Value, len(items))
	return result
}

// Wait waits until a task of a shard may be due.
func (s *source) Wait(ctx context.Context, shard int) error {
	err := s.ready()
	if err == nil {
		_, errs := watch.Wait(ctx, s.queue.shards[shard].watcher)
		err = s.explain(joinErrors(errs))
	}
	return wrap("wait", s.queue.name, err)
}

// Start runs a job in a goroutine of the executor's.
func (s *source) Start(job redisexec.Job) { s.queue.executor.Start(job) }
