// SPDX-License-Identifier: BSD-2-Clause

// Package exporter makes metrics for Prometheus of what ports count and of the objects that programs have, and serves
// them.
package exporter

import "github.com/prometheus/client_golang/prometheus"

// metric is a family of metrics.
type metric struct {
	name, help string
	kind       prometheus.ValueType
	labels     []string
	desc       *prometheus.Desc
	file       string  // of sysfs, for a counter of a port
	factor     float64 // of it
}

const (
	counter = prometheus.CounterValue
	gauge   = prometheus.GaugeValue
)

var (
	ofPort    = []string{"device", "port"}
	ofProcess = []string{"device", "process", "pid"}
)

// named makes a family.
func named(name, help string, kind prometheus.ValueType, labels ...string) *metric {
	return &metric{name: name, help: help, kind: kind, labels: labels,
		desc: prometheus.NewDesc(name, help, labels, nil)}
}

// counted makes a family of what a port counts in a file of its directory counters.
func counted(file, name string, factor float64, help string) *metric {
	m := named("goverbs_port_"+name+"_total", help, counter, ofPort...)
	m.file, m.factor = file, factor
	return m
}

// Families beside those of a port's counters.
var (
	deviceInfo = named("goverbs_device_info", "Always 1: what a device is.", gauge, "device", "driver", "firmware",
		"board", "node_guid")
	deviceObjects = named("goverbs_device_objects", "Objects of all programs and of the kernel on a device, by "+
		"kind: qp, mr, cq, pd, cm_id, srq, ctx.", gauge, "device", "kind")
	deviceHidden = named("goverbs_device_hidden_objects", "Those of them that the kernel did not list, because they "+
		"belong to programs in other PID namespaces.", gauge, "device", "kind")
	processObjects = named("goverbs_process_objects", "Objects of a program on a device, by kind.", gauge,
		append(ofProcess[:3:3], "kind")...)
	processBytes = named("goverbs_process_memory_region_bytes", "Bytes in all memory regions of a program.", gauge,
		ofProcess...)
	portInfo = named("goverbs_port_info", "Always 1: the state of a port and its link.", gauge, "device", "port",
		"state", "physical_state", "link_layer")
	portActive = named("goverbs_port_active", "Whether a port is in state ACTIVE: 1 or 0.", gauge, ofPort...)
	portRate   = named("goverbs_port_rate_bytes_per_second", "What the link of a port is able to carry.", gauge,
		ofPort...)
	portOther = named("goverbs_port_events_total", "Counters of a port that have no metric of their own.", counter,
		"device", "port", "counter")
	hardware = named("goverbs_hardware_events_total", "What the driver of a port counts, under its own names "+
		"(hw_counters, rdma statistic).", counter, "device", "port", "counter")
	softwareWaiting = named("goverbs_software_receive_queue_bytes", "Packets of software devices that their "+
		"program has not read, as the kernel counts their memory.", gauge, "address", "process")
	softwareDrops = named("goverbs_software_dropped_packets_total", "Packets of software devices that found no "+
		"room in their socket.", counter, "address", "process")
	posted = named("goverbs_process_posted_requests_total", "Requests that a program posted to its checked queues: "+
		"send, receive, shared_receive.", counter, append(ofProcess[:3:3], "queue")...)
	completed = named("goverbs_process_completed_requests_total", "Those of them that are done.", counter,
		append(ofProcess[:3:3], "queue")...)
	outstanding = named("goverbs_process_outstanding_requests", "Those of them that are not.", gauge,
		append(ofProcess[:3:3], "queue")...)
	slots = named("goverbs_process_queue_slots", "Requests that the checked queues of a program take at once.", gauge,
		append(ofProcess[:3:3], "queue")...)
	queues = named("goverbs_process_queues", "Queues of a program, counted or not: those without checks count nothing.",
		gauge, append(ofProcess[:3:3], "queue", "counted")...)
	softwareObjects = named("goverbs_process_software_objects", "Objects of a program on a device in software, by "+
		"kind.", gauge, append(ofProcess[:3:3], "kind")...)
	softwareBytes = named("goverbs_process_software_memory_region_bytes", "Bytes in all its memory regions there.",
		gauge, ofProcess...)
	softwareEvents = named("goverbs_process_software_events_total", "What a device in software of a program counts "+
		"(docs/wire.md).", counter, append(ofProcess[:3:3], "counter")...)
	leases = named("goverbs_process_cache_leases_total", "Leases of a program's caches of registrations: of memory "+
		"that was registered (hit) or was not (miss).", counter, "process", "pid", "result")
	dropped = named("goverbs_process_cache_dropped_regions_total", "Regions that caches gave up: because of a limit, "+
		"or because the memory was unmapped.", counter, "process", "pid", "reason")
	cached      = named("goverbs_process_cache_regions", "Regions that caches have.", gauge, "process", "pid")
	cachedBytes = named("goverbs_process_cache_bytes", "Bytes in them.", gauge, "process", "pid")

	processHardware = named("goverbs_process_hardware_events_total", "What hardware counts for the queue pairs of a "+
		"program that are bound to counters (rdma statistic qp).", counter,
		append(ofProcess[:3:3], "port", "counter")...)

	notes = named("goverbs_exporter_notes", "Reasons why something is missing here; goverbs top prints them.", gauge)
	took  = named("goverbs_exporter_read_seconds", "How long the kernel was asked for these metrics.", gauge)
	info  = named("goverbs_exporter_info", "Always 1: the version of the exporter.", gauge, "version", "go")
)

// portCounters are the counters of InfiniBand's performance management that ports have; kernels count data in units of
// four bytes.
var portCounters = []*metric{
	counted("port_rcv_data", "received_bytes", 4, "Bytes received, as the port counts them."),
	counted("port_xmit_data", "transmitted_bytes", 4, "Bytes sent, as the port counts them."),
	counted("port_rcv_packets", "received_packets", 1, "Packets received, those with errors too."),
	counted("port_xmit_packets", "transmitted_packets", 1, "Packets sent, those with errors too."),
	counted("unicast_rcv_packets", "unicast_received_packets", 1, "Packets to one receiver that were received."),
	counted("unicast_xmit_packets", "unicast_transmitted_packets", 1, "Packets to one receiver that were sent."),
	counted("multicast_rcv_packets", "multicast_received_packets", 1, "Packets to a group that were received."),
	counted("multicast_xmit_packets", "multicast_transmitted_packets", 1, "Packets to a group that were sent."),
	counted("port_rcv_errors", "receive_errors", 1, "Packets received with an error."),
	counted("port_rcv_remote_physical_errors", "receive_remote_physical_errors", 1,
		"Packets received that a switch before had marked as bad."),
	counted("port_rcv_switch_relay_errors", "receive_switch_relay_errors", 1,
		"Packets received that a switch could not pass on."),
	counted("port_rcv_constraint_errors", "receive_constraint_errors", 1,
		"Packets received that partitions or filters refused."),
	counted("port_xmit_discards", "transmit_discards", 1,
		"Packets not sent, because the port was down or had no room."),
	counted("port_xmit_constraint_errors", "transmit_constraint_errors", 1,
		"Packets not sent, because partitions or filters refused them."),
	counted("port_xmit_wait", "transmit_wait_ticks", 1,
		"Ticks of the port's clock in which it had data and no credit to send."),
	counted("symbol_error", "symbol_errors", 1, "Minor errors of the link."),
	counted("link_error_recovery", "link_error_recoveries", 1, "Times that the link recovered from errors."),
	counted("link_downed", "link_downed", 1, "Times that the link failed to recover, and went down."),
	counted("local_link_integrity_errors", "local_link_integrity_errors", 1,
		"Times that errors of the link were more than its limit."),
	counted("excessive_buffer_overrun_errors", "excessive_buffer_overrun_errors", 1,
		"Times that buffers overran again and again."),
	counted("VL15_dropped", "vl15_dropped_packets", 1, "Packets of management that found no room."),
}

// families are all.
var families = append([]*metric{deviceInfo, deviceObjects, deviceHidden, processObjects, processBytes, portInfo,
	portActive, portRate, portOther, hardware, softwareWaiting, softwareDrops, posted,
	completed, outstanding, slots, queues, softwareObjects, softwareBytes, softwareEvents, leases, dropped, cached,
	cachedBytes, processHardware, notes, took, info}, portCounters...)
