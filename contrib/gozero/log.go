package gozero

import (
	"context"
	"log/slog"

	"github.com/zeromicro/go-zero/core/logx"
)

// Logger returns a logger that writes by logx, for the Logger of a Worker or a Pool. Warnings, which
// logx has no level for, are errors there. The names of groups are left out: Sluice has none.
func Logger() *slog.Logger { return slog.New(handler{}) }

// handler is a slog.Handler whose fields have been given to With.
type handler struct{ fields []logx.LogField }

func (handler) Enabled(context.Context, slog.Level) bool { return true } // logx decides

func (h handler) WithGroup(string) slog.Handler { return h }

func (h handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	fields := h.fields[:len(h.fields):len(h.fields)] // append makes a copy, as others may have h too
	for _, a := range attrs {
		fields = append(fields, logx.Field(a.Key, a.Value.Resolve().Any()))
	}
	return handler{fields}
}

func (h handler) Handle(ctx context.Context, r slog.Record) error {
	attrs := make([]slog.Attr, 0, r.NumAttrs())
	r.Attrs(func(a slog.Attr) bool {
		attrs = append(attrs, a)
		return true
	})
	fields := h.WithAttrs(attrs).(handler).fields
	switch logger := logx.WithContext(ctx); {
	case r.Level >= slog.LevelWarn:
		logger.Errorw(r.Message, fields...)
	case r.Level >= slog.LevelInfo:
		logger.Infow(r.Message, fields...)
	default:
		logger.Debugw(r.Message, fields...)
	}
	return nil
}
