package sluice

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/sluice-go/sluice/internal/redisexec"
	"github.com/sluice-go/sluice/internal/taskloop"
)

// source is a Queue as a worker's run loop sees it: a taskloop.Source. It builds the
// requests and decodes the replies.
type source struct {
	queue *Queue
	lease time.Duration
}

// Exchange sends reports and a claim in one pipeline. Tasks are finished by the script that
// claims. If the server rejects that, there is one script for each: to be denied what claims is
// no reason not to finish.
func (s *source) Exchange(reports []taskloop.Report, claim int) ([]taskloop.ReportResult, taskloop.ClaimResult) {
	requests := make([]redisexec.Request, 0, len(reports)+1)
	var finish []taskloop.Item
	joined := -1 // the report that the claim's script carries out
	for i, r := range reports {
		if r.Operation == taskloop.Finish && claim > 0 {
			finish, joined = r.Items, i
		} else {
			requests = append(requests, s.reportRequest(r))
		}
	}
	if claim > 0 {
		requests = append(requests, s.queue.exchangeRequest(finish, claim, s.lease))
	}
	mark, sent := s.queue.watcher.mark(), time.Now()
	answers := s.queue.executor.SendAll(context.Background(), requests)
	claimed := answers[len(answers)-1]
	if joined >= 0 {
		finished := claimed
		if claimed.Outcome == redisexec.Rejected {
			apart := s.queue.executor.SendAll(context.Background(), []redisexec.Request{
				s.queue.exchangeRequest(finish, 0, 0), s.queue.exchangeRequest(nil, claim, s.lease),
			})
			finished, claimed = apart[0], apart[1]
		}
		answers = slices.Insert(answers, joined, finished)
	}
	results := make([]taskloop.ReportResult, len(reports))
	for i, r := range reports {
		results[i] = decodeReport(answers[i], r)
	}
	if claim == 0 {
		return results, taskloop.ClaimResult{}
	}
	tasks := decodeClaim(claimed)
	if tasks.Outcome == redisexec.Done && tasks.Err == nil {
		s.queue.watcher.claimed(mark, sent, claimed.Value, len(tasks.Tasks))
	}
	return results, tasks
}

// reportRequest returns the request of a report.
func (s *source) reportRequest(r taskloop.Report) redisexec.Request {
	if r.Operation == taskloop.Finish {
		return s.queue.exchangeRequest(r.Items, 0, 0)
	}
	args := make([]any, 1, 1+4*len(r.Items))
	args[0] = s.queue.channel
	for i := range r.Items {
		switch item := &r.Items[i]; item.Disposition.Action {
		case taskloop.Retry:
			args = appendGiveBack(args, item.ID, item.Receipt, item.Disposition.Delay, attemptCounts)
		case taskloop.Release:
			args = appendGiveBack(args, item.ID, item.Receipt, 0, attemptDoesNotCount)
		case taskloop.SetAside:
			args = appendBury(args, item.ID, item.Receipt, item.Disposition.Reason)
		case taskloop.Complete: // see above
		}
	}
	return reportScripts[r.Operation].Request(s.queue.keys, args...)
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
	result.Tasks, result.More, result.Receipt = tasks, seen > 0, receiptIn(r.Value)
	return result
}

// Extend sends extensions in one pipeline.
func (s *source) Extend(ctx context.Context, items []taskloop.Item) []taskloop.ExtendResult {
	requests := make([]redisexec.Request, len(items))
	for i, item := range items {
		requests[i] = s.queue.heartbeatRequest(item.ID, item.Receipt, s.lease)
	}
	results := make([]taskloop.ExtendResult, len(items))
	for i, r := range s.queue.executor.Pipeline(ctx, requests) {
		results[i] = taskloop.ExtendResult{Outcome: r.Outcome, Err: r.Err}
		if r.Outcome == redisexec.Done {
			results[i].Answer, results[i].Err = decodeAnswer(r.Value)
		}
	}
	return results
}

// Wait waits until a task may be due.
func (s *source) Wait(ctx context.Context) error { return s.queue.Wait(ctx) }

// Start runs a job in a goroutine of the executor's.
func (s *source) Start(job redisexec.Job) { s.queue.executor.Start(job) }
