// Package store knows what is kept where in Redis: the keys of locks and queues, the scripts that
// work on them, with their arguments, and what they answer. No other package does.
//
// It makes requests, and reads replies. To send them is the business of [redisexec].
package store
