package gozero_test

import (
	"context"

	"github.com/zeromicro/go-zero/core/logx"
	"github.com/zeromicro/go-zero/core/service"
	"github.com/zeromicro/go-zero/rest"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/contrib/gozero"
)

// The main function of a service with an HTTP server and a worker.
func ExampleNewService() {
	var c config // by conf.MustLoad
	server := rest.MustNewServer(c.RestConf)
	ctx, err := gozero.NewServiceContext(c.Redis)
	logx.Must(err)
	defer ctx.Close() // when the group has ended
	orders, err := sluice.NewQueue(ctx.Redis, "orders")
	logx.Must(err)

	worker := &sluice.Worker{
		Queue:   orders,
		Handler: func(context.Context, sluice.Entry) error { return nil },
		Logger:  gozero.Logger(),
		Grace:   gozero.Grace(c.Shutdown.WrapUpTime, c.Shutdown.WaitTime),
	}
	group := service.NewServiceGroup()
	group.Add(server)
	group.Add(gozero.NewService(worker))
	group.Start() // blocks
}
