// SPDX-License-Identifier: BSD-2-Clause

package doctor

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/goverbs/goverbs/cmd/goverbs/internal/sysfs"
)

// errorCounters lists error counters by the cause that an increase indicates.
var errorCounters = []struct {
	id    string
	names []string
}{
	{"counters.link", []string{"symbol_error", "link_error_recovery", "link_downed", "port_rcv_errors",
		"local_link_integrity_errors", "excessive_buffer_overrun_errors", "rx_icrc_encapsulated"}},
	{"counters.loss", []string{"out_of_sequence", "packet_seq_err", "local_ack_timeout_err", "implied_nak_seq_err",
		"out_of_buffer", "rnr_nak_retry_err", "retry_exceeded_err", "rcvd_seq_err", "out_of_seq_request",
		"duplicate_request", "send_rnr_err", "port_xmit_discards", "rx_drops", "retrans_pkts",
		"retrans_timeout_events"}},
	{"counters.congestion", []string{"np_cnp_sent", "rp_cnp_handled", "np_ecn_marked_roce_packets", "port_xmit_wait"}},
}

// checkCounters compares two readings of the counters.
func (h *Host) checkCounters() (all []Finding) {
	if h.Later == nil {
		return nil
	}
	h.ports(func(p *sysfs.Port) {
		for _, kind := range errorCounters {
			var rose []string
			for _, dir := range []string{p.Dir + "/counters/", p.Dir + "/hw_counters/"} {
				for _, name := range kind.names {
					before, ok := h.number(dir + name)
					after, err := strconv.ParseUint(sysfs.Text(h.Later, dir+name), 10, 64)
					if ok && err == nil && after > before {
						rose = append(rose, fmt.Sprintf("%s by %d", name, after-before))
					}
				}
			}
			if len(rose) > 0 {
				finding := fmt.Sprintf("%s in %v", strings.Join(rose, ", "), h.Interval)
				all = append(all, found(kind.id, p.String(), finding, "goverbs query "+p.Of.Name))
			}
		}
	})
	return all
}

func (h *Host) checkPCIe() (all []Finding) {
	for _, d := range h.all() {
		dir := d.Dir + "/device/"
		slot := h.target(strings.TrimSuffix(dir, "/"))
		width, most := h.text(dir+"current_link_width"), h.text(dir+"max_link_width")
		now, ok := strconv.Atoi(width)
		top, ok2 := strconv.Atoi(most)
		if ok == nil && ok2 == nil && now > 0 && now < top {
			all = append(all, found("pcie.width", d.Name, fmt.Sprintf("%d of %d lanes", now, top), slot))
		}
		speed, fastest := gigatransfers(h.text(dir+"current_link_speed")), gigatransfers(h.text(dir+"max_link_speed"))
		if speed > 0 && speed < fastest {
			all = append(all, found("pcie.speed", d.Name, fmt.Sprintf("%g of %g GT/s", speed, fastest), slot))
		}
	}
	return all
}

// gigatransfers parses "16.0 GT/s PCIe".
func gigatransfers(text string) float64 {
	number, _, _ := strings.Cut(text, " ")
	n, err := strconv.ParseFloat(number, 64)
	if err != nil {
		return 0
	}
	return n
}

// checkNUMA compares the CPUs of this process with those near its adapters.
func (h *Host) checkNUMA() (all []Finding) {
	allowed := map[int]bool{}
	for line := range strings.Lines(h.text("proc/self/status")) {
		if text, ok := strings.CutPrefix(line, "Cpus_allowed_list:"); ok {
			for _, cpu := range cpus(text) {
				allowed[cpu] = true
			}
		}
	}
	for _, d := range h.all() {
		node, ok := h.number(d.Dir + "/device/numa_node")
		if !ok || len(allowed) == 0 {
			continue
		}
		near := cpus(h.text(fmt.Sprintf("sys/devices/system/node/node%d/cpulist", node)))
		if len(near) > 0 && !slices.ContainsFunc(near, func(cpu int) bool { return allowed[cpu] }) {
			n := strconv.FormatUint(node, 10)
			all = append(all, found("numa.far", d.Name, "node "+n, n, n))
		}
	}
	return all
}

// cpus parses a list such as 0-3,8.
func cpus(text string) (all []int) {
	for part := range strings.SplitSeq(strings.TrimSpace(text), ",") {
		first, last, ok := strings.Cut(part, "-")
		if !ok {
			last = first
		}
		a, err := strconv.Atoi(first)
		b, err2 := strconv.Atoi(last)
		if err != nil || err2 != nil {
			continue
		}
		for ; a <= b && len(all) < 1<<16; a++ {
			all = append(all, a)
		}
	}
	return all
}

func (h *Host) checkPower() []Finding {
	if h.text("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor") == "powersave" {
		return []Finding{found("power.governor", "CPU 0", "governor powersave")}
	}
	return nil
}

func (h *Host) checkClock() []Finding {
	source := h.text("sys/devices/system/clocksource/clocksource0/current_clocksource")
	if slices.Contains([]string{"hpet", "acpi_pm", "jiffies", "pit", "refined-jiffies"}, source) {
		return []Finding{found("clock.source", "the kernel", source)}
	}
	return nil
}

func (h *Host) checkHugePages() []Finding {
	pages := map[string]uint64{}
	for line := range strings.Lines(h.text("proc/meminfo")) {
		name, rest, _ := strings.Cut(line, ":")
		if fields := strings.Fields(rest); len(fields) > 0 {
			pages[name], _ = strconv.ParseUint(fields[0], 10, 64)
		}
	}
	total := pages["HugePages_Total"]
	switch efa := func(d *sysfs.Device) bool { return d.Provider == "efa" }; {
	case len(h.all()) == 0:
	case total > 0 && pages["HugePages_Free"] == 0:
		return []Finding{found("hugepages.gone", "this host", fmt.Sprint(total), strconv.FormatUint(2*total, 10))}
	case total == 0 && slices.ContainsFunc(h.all(), efa):
		return []Finding{found("hugepages.efa", "this host", "")}
	}
	return nil
}

// checkGPU checks whether GPU memory can be registered, with the vendor's module or with dma-buf.
func (h *Host) checkGPU() []Finding {
	if !h.module("nvidia") || h.module("nvidia_peermem") || h.release().atLeast(5, 12) {
		return nil
	}
	return []Finding{found("gpu.peer", "the kernel", "nvidia_peermem is not loaded, and Linux "+
		h.text("proc/sys/kernel/osrelease")+" has no dma-buf for RDMA")}
}

// version is the version of a kernel: 6 and 1 for 6.1.0-18-amd64.
type version [2]int

func (v version) atLeast(major, minor int) bool {
	return v[0] > major || v[0] == major && v[1] >= minor
}

func (h *Host) release() (v version) {
	parts := strings.SplitN(h.text("proc/sys/kernel/osrelease"), ".", 3)
	for i := range min(len(parts), 2) {
		digits := strings.TrimRightFunc(parts[i], func(r rune) bool { return r < '0' || r > '9' })
		v[i], _ = strconv.Atoi(digits)
	}
	return v
}

// checkKernel compares the kernel with the oldest tested one.
func (h *Host) checkKernel() []Finding {
	rxe := slices.IndexFunc(h.all(), func(d *sysfs.Device) bool { return d.Provider == "rxe" })
	if v := h.release(); rxe < 0 || v == (version{}) || v.atLeast(6, 1) {
		return nil
	}
	return []Finding{found("kernel.rxe", h.all()[rxe].Name, "Linux "+h.text("proc/sys/kernel/osrelease"),
		"use Linux 6.1 or later, the oldest tested version")}
}
