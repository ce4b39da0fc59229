package sluicekratos_test

import (
	"context"
	"time"

	"github.com/go-kratos/kratos/v2"
	"github.com/go-kratos/kratos/v2/log"
	"github.com/go-kratos/kratos/v2/transport/http"

	"github.com/sluice-go/sluice"
	sluicekratos "github.com/sluice-go/sluice/contrib/kratos"
)

// The main function of an application with an HTTP server and a worker.
func ExampleNewServer() {
	var (
		orders *sluice.Queue // of internal/data
		logger = log.GetLogger()
		hs     = http.NewServer()
	)
	worker := sluicekratos.NewServer(&sluice.Worker{
		Queue:   orders,
		Handler: func(context.Context, sluice.Entry) error { return nil },
		Logger:  sluicekratos.Logger(logger),
		Grace:   8 * time.Second,
	})
	app := kratos.New(
		kratos.Server(hs, worker),
		kratos.StopTimeout(10*time.Second), // longer than Grace and a second
	)
	if err := app.Run(); err != nil {
		panic(err)
	}
}
