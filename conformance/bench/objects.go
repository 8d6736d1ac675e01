// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
)

// objectLimit is the maximum overhead of objects per work request, in nanoseconds.
const objectLimit = 5

// objectRow is the cost of posting a list and polling its completion, in nanoseconds, with bare queues of the runtime
// and with objects.
type objectRow struct {
	batch                    int
	bare, objects, unchecked figure
}

// measureObjects compares a checked QP and its CQ with an unchecked queue without objects. Both make the same C calls
// on the system stack. The device is soft0 with stub functions in its context.
func measureObjects() (rows []objectRow, err error) {
	old, had := os.LookupEnv(rdma.EnvCall)
	os.Setenv(rdma.EnvCall, "system")
	defer func() {
		if had {
			os.Setenv(rdma.EnvCall, old)
		} else {
			os.Unsetenv(rdma.EnvCall)
		}
	}()
	device, err := rdma.Open("soft0")
	if err != nil {
		return nil, err
	}
	defer device.Close()
	pd, err := device.AllocPD()
	if err != nil {
		return nil, err
	}
	defer pd.Close()
	before := device.C().Ops
	lend(device.C())
	defer func() { device.C().Ops = before }()
	cq, err := device.CreateCQ(2*depth, nil, 0)
	if err != nil {
		return nil, err
	}
	defer cq.Close()
	newQP := func(o rdma.QueueOptions) (*rdma.QP, error) {
		qp, err := pd.CreateQP(&ibv.QPInitAttr{
			QPType: ibv.QPT_RC, SendCQ: cq.Ptr(), RecvCQ: cq.Ptr(), Cap: ibv.QPCap{MaxSendWR: depth, MaxSendSGE: 1},
		}, o)
		if err != nil {
			return nil, err
		}
		local, err := qp.Endpoint()
		if err == nil {
			err = qp.Connect(local)
		}
		return qp, err
	}
	qp, err := newQP(rdma.QueueOptions{})
	if err != nil {
		return nil, err
	}
	defer qp.Close()
	loose, err := newQP(rdma.QueueOptions{Unchecked: true})
	if err != nil {
		return nil, err
	}
	defer loose.Close()
	// nothing to drain at the end
	if err = loose.Modify(&ibv.QPAttr{QPState: ibv.QPS_RESET}, ibv.QP_STATE); err != nil {
		return nil, err
	}
	bare, err := rdma.NewSendQueue(qp.C(), rdma.QueueOptions{Unchecked: true})
	if err != nil {
		return nil, err
	}
	bareCQ, err := rdma.NewCompletionQueue(cq.C(), rdma.QueueOptions{})
	if err != nil {
		return nil, err
	}
	defer completes(0, 0, 0) // before closing, so that polls terminate
	for _, batch := range []int{1, 4, 16, 64} {
		b, err := newBatch(batch)
		if err != nil {
			return nil, err
		}
		defer b.Close()
		wcs := make([]ibv.WC, 16)
		last := b.WR(batch - 1).WRID
		cycle := func(n int) error {
			completes(last, qp.Num(), ibv.WC_RDMA_WRITE)
			for range n {
				if _, err := bare.Post(b); err != nil {
					return err
				}
				if n, err := bareCQ.Poll(wcs); n != 1 || err != nil {
					return fmt.Errorf("polled %d: %w", n, err)
				}
			}
			return nil
		}
		objects := func(qp *rdma.QP) func(n int) error {
			return func(n int) error {
				completes(last, qp.Num(), ibv.WC_RDMA_WRITE)
				for range n {
					if _, err := qp.PostSend(b); err != nil {
						return err
					}
					if n, err := cq.Poll(wcs); n != 1 || err != nil {
						return fmt.Errorf("polled %d: %w", n, err)
					}
				}
				return nil
			}
		}
		f, err := inTurn(cycle, objects(qp), objects(loose))
		if err != nil {
			return nil, err
		}
		rows = append(rows, objectRow{batch, f[0], f[1], f[2]})
	}
	return rows, nil
}

// inTurn measures loops in interleaved rounds.
func inTurn(loops ...func(n int) error) (all []figure, err error) {
	const n, samples = 5000, 201
	ns := make([][]float64, len(loops))
	for range samples {
		for i, loop := range loops {
			start := time.Now()
			if err := loop(n); err != nil {
				return nil, err
			}
			ns[i] = append(ns[i], float64(time.Since(start))/n)
		}
	}
	for i := range ns {
		slices.Sort(ns[i])
		all = append(all, figure{ns[i][0], ns[i][samples/2]})
	}
	return all, nil
}

func runObjects(out string) error {
	rows, err := measureObjects()
	if err != nil {
		return err
	}
	objectsTable(os.Stdout, rows)
	if out == "" {
		return nil
	}
	var csv, md strings.Builder
	csv.WriteString("batch,impl,min_ns,median_ns\n")
	for _, r := range rows {
		fmt.Fprintf(&csv, "%d,bare,%s,%s\n%[1]d,objects,%[4]s,%[5]s\n%[1]d,objects-unchecked,%[6]s,%[7]s\n", r.batch,
			number(r.bare.min), number(r.bare.median), number(r.objects.min), number(r.objects.median),
			number(r.unchecked.min), number(r.unchecked.median))
	}
	fmt.Fprintf(&md, objectsHeading, runtime.Version(), runtime.GOOS, runtime.GOARCH, runtime.NumCPU())
	objectsTable(&md, rows)
	if err := os.WriteFile(filepath.Join(out, "objects.csv"), []byte(csv.String()), 0o644); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(out, "objects.md"), []byte(md.String()), 0o644)
}

const objectsHeading = `# Objects compared with the bare runtime

Written by ` + "`make bench`" + `. Each call posts a list whose last request is signaled, and polls its completion. Objects are a
QP and a CQ of package rdma, which check requests, count slots and may be closed at any time; bare is an unchecked queue
without objects. The C functions return immediately. Unchecked objects show the cost of safe closing alone. Minimum /
median in ns; %s, %s/%s, %d CPUs.

`

func objectsTable(w io.Writer, rows []objectRow) {
	fmt.Fprint(w, "| batch | bare | objects | objects, unchecked | overhead per work request "+
		"| limit | | unchecked |\n|---:|---:|---:|---:|---:|---:|---|---:|\n")
	for _, r := range rows {
		more := func(f figure) float64 { return (f.min - r.bare.min) / float64(r.batch) }
		verdict := "ok"
		if more(r.objects) > objectLimit {
			verdict = "missed"
		}
		fmt.Fprintf(w, "| %d | %.1f / %.1f | %.1f / %.1f | %.1f / %.1f | %.1f | ≤ %d | %s | %.1f |\n", r.batch,
			r.bare.min, r.bare.median, r.objects.min, r.objects.median,
			r.unchecked.min, r.unchecked.median, more(r.objects), objectLimit, verdict, more(r.unchecked))
	}
}
