// SPDX-License-Identifier: BSD-2-Clause

package objects

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/conformance/vm/testbed"
	"github.com/goverbs/goverbs/conformance/vm/wire"
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/registration"
)

const (
	large  = 128 << 20 // bytes
	rounds = 7
)

// TestRegistrationSpeed compares cache hits with registrations, and ways to register large memory, in interleaved
// rounds. It writes figures to registration-KERNEL.csv and ratios to a page. Since load distorts the figures, it
// asserts nothing and runs only with GOVERBS_SPEED=1.
func TestRegistrationSpeed(t *testing.T) {
	testbed.Kernel(t)
	if os.Getenv("GOVERBS_SPEED") == "" {
		t.Skip("measures for some seconds: make bench WHAT=vm, or GOVERBS_SPEED=1 GOVERBS_OUT=DIR")
	}
	d := open(t)
	pd, err := d.AllocPD()
	keep(t, pd, err)
	cache, err := registration.NewCache(pd, registration.Options{})
	keep(t, cache, err)
	heap, outside := make([]byte, 1<<20), mmap(t)
	defer unmap(t, outside)
	clear(heap)
	kinds := []struct {
		name    string
		against int // row of the denominator of the ratio
		run     func() float64
	}{
		{"ibv_reg_mr and ibv_dereg_mr, 4 KiB, µs", 0, func() float64 { return registering(t, pd, heap[:4096]) }},
		{"ibv_reg_mr and ibv_dereg_mr, 1 MiB, µs", 0, func() float64 { return registering(t, pd, heap) }},
		{"Get and Release of Go memory that is cached, µs", 0, func() float64 { return cacheHit(t, cache, heap) }},
		{"Get and Release of memory of mmap that is cached, µs", 0,
			func() float64 { return cacheHit(t, cache, outside) }},
	}
	for _, pages := range []struct {
		name   string
		advice int
	}{{"4 KiB", unix.MADV_NOHUGEPAGE}, {"2 MiB", unix.MADV_HUGEPAGE}} {
		for _, used := range []bool{false, true} {
			against := len(kinds)
			for _, variant := range largeWays {
				kinds = append(kinds, kinds[0])
				k := &kinds[len(kinds)-1]
				state := map[bool]string{false: "never used", true: "in use"}[used]
				k.name = fmt.Sprintf("%s: 128 MiB %s, pages of %s, ms", variant.name, state, pages.name)
				k.against = against
				k.run = func() float64 { return largeIn(t, pd, pages.advice, used, variant.register) }
			}
		}
	}
	figures := make([][]float64, len(kinds))
	for range rounds {
		for i, k := range kinds {
			figures[i] = append(figures[i], k.run())
		}
	}
	var csv, page strings.Builder
	csv.WriteString("what,minimum,median,maximum\n")
	where := "by make bench WHAT=vm in one boot with Soft-RoCE, under QEMU's software emulation with two processors"
	if testbed.Kernel(t) == testbed.Soft {
		where = fmt.Sprintf("on the software device, with %d processors", runtime.GOMAXPROCS(0))
	}
	fmt.Fprintf(&page, registrationPage, where)
	for i, k := range kinds {
		least, median, most := spread(figures[i])
		ratios := make([]float64, rounds)
		for r := range ratios {
			ratios[r] = figures[i][r] / figures[k.against][r]
		}
		low, ratio, high := spread(ratios)
		fmt.Fprintf(&csv, "%q,%.3f,%.3f,%.3f\n", k.name, least, median, most)
		fmt.Fprintf(&page, "| %s | %.3g | %.3g (%.2g–%.2g) |\n", k.name, median, ratio, low, high)
	}
	t.Logf("\n%s", page.String())
	if dir := os.Getenv(wire.EnvOut); dir != "" {
		for ext, text := range map[string]string{"csv": csv.String(), "md": page.String()} {
			require.NoError(t, os.WriteFile(dir+"/registration-"+os.Getenv(wire.EnvGuest)+"."+ext, []byte(text), 0o644))
		}
	}
}

const registrationPage = `# Registrations and cache hits

Measured %s,
in 7 interleaved rounds. Figures are medians of the rounds; ratios are medians (minimum–maximum) of the ratios of each
round. The first four rows are compared with the first, and every three of the others with the first of the three.

| what | median | ratio |
|---|---|---|
`

// spread returns minimum, median and maximum.
func spread(all []float64) (least, median, most float64) {
	all = slices.Sorted(slices.Values(all))
	return all[0], all[len(all)/2], all[len(all)-1]
}

// registering returns the time for a registration and its release in µs.
func registering(t testing.TB, pd *rdma.PD, b []byte) float64 {
	const n = 50
	start := time.Now()
	for range n {
		mr, err := pd.RegMR(b, ibv.ACCESS_LOCAL_WRITE)
		require.NoError(t, err)
		require.NoError(t, mr.Close())
	}
	return time.Since(start).Seconds() * 1e6 / n
}

// cacheHit returns the time for a cache hit in µs.
func cacheHit(t testing.TB, c *registration.Cache, b []byte) float64 {
	const n = 20_000
	first, err := c.Get(b, ibv.ACCESS_LOCAL_WRITE)
	require.NoError(t, err)
	first.Release()
	hits := c.Stats().Hits
	start := time.Now()
	for i := range n {
		lease, err := c.Get(b[i:][:100], ibv.ACCESS_LOCAL_WRITE)
		if err != nil {
			t.Fatal(err)
		}
		lease.Release()
	}
	elapsed := time.Since(start)
	require.EqualValues(t, n, c.Stats().Hits-hits)
	return elapsed.Seconds() * 1e6 / n
}

// largeWays lists ways to register large memory. Each returns a function that deregisters it.
var largeWays = []struct {
	name     string
	register func(pd *rdma.PD, b []byte) (interface{ Close() error }, error)
}{
	{"one ibv_reg_mr", func(pd *rdma.PD, b []byte) (interface{ Close() error }, error) {
		return pd.RegMR(b, ibv.ACCESS_LOCAL_WRITE)
	}},
	{"Prefault, one ibv_reg_mr", func(pd *rdma.PD, b []byte) (interface{ Close() error }, error) {
		if err := registration.Prefault(b, 0); err != nil {
			return nil, err
		}
		return pd.RegMR(b, ibv.ACCESS_LOCAL_WRITE)
	}},
	{"Parallel, a piece for each processor", func(pd *rdma.PD, b []byte) (interface{ Close() error }, error) {
		return registration.Parallel(pd, b, ibv.ACCESS_LOCAL_WRITE, 0)
	}},
}

// largeIn returns the time to register large memory in ms.
func largeIn(t testing.TB, pd *rdma.PD, advice int, used bool,
	register func(*rdma.PD, []byte) (interface{ Close() error }, error)) float64 {
	b, err := unix.Mmap(-1, 0, large, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	require.NoError(t, err)
	unix.Madvise(b, advice) // EINVAL if the kernel has no huge pages
	if used {
		clear(b)
	}
	start := time.Now()
	mr, err := register(pd, b)
	elapsed := time.Since(start)
	require.NoError(t, err)
	require.NoError(t, mr.Close())
	require.NoError(t, unix.Munmap(b))
	return elapsed.Seconds() * 1e3
}
