// SPDX-License-Identifier: BSD-2-Clause

// Package exporter exports port counters and RDMA objects of programs as Prometheus metrics. A [Collector] reads a
// host; [Serve] serves it over HTTP.
package exporter

import "github.com/prometheus/client_golang/prometheus"

// metric is a metric family.
type metric struct {
	name, help string
	kind       prometheus.ValueType
	labels     []string
	desc       *prometheus.Desc
	file       string  // sysfs file of a port counter
	factor     float64 // of its values
}

const (
	counter = prometheus.CounterValue
	gauge   = prometheus.GaugeValue
)

var (
	ofPort    = []string{"device", "port"}
	ofProcess = []string{"device", "process", "pid"}
)

// newMetric returns a family.
func newMetric(name, help string, kind prometheus.ValueType, labels ...string) *metric {
	return &metric{name: name, help: help, kind: kind, labels: labels,
		desc: prometheus.NewDesc(name, help, labels, nil)}
}

// portCounter returns a family for a file in the counters directory of a port.
func portCounter(file, name string, factor float64, help string) *metric {
	m := newMetric("goverbs_port_"+name+"_total", help, counter, ofPort...)
	m.file, m.factor = file, factor
	return m
}

// Families other than port counters.
var (
	deviceInfo = newMetric("goverbs_device_info", "Information about a device; always 1.", gauge, "device", "driver",
		"firmware", "board", "node_guid")
	deviceObjects = newMetric("goverbs_device_objects", "Objects of all programs and the kernel on a device, by "+
		"kind: qp, mr, cq, pd, cm_id, srq, ctx.", gauge, "device", "kind")
	deviceHidden = newMetric("goverbs_device_hidden_objects", "Objects that the kernel did not list because they "+
		"belong to other PID namespaces.", gauge, "device", "kind")
	processObjects = newMetric("goverbs_process_objects", "Objects of a program on a device, by kind.", gauge,
		append(ofProcess[:3:3], "kind")...)
	processBytes = newMetric("goverbs_process_memory_region_bytes", "Total size of a program's memory regions.", gauge,
		ofProcess...)
	portInfo = newMetric("goverbs_port_info", "State of a port and its link; always 1.", gauge, "device", "port",
		"state", "physical_state", "link_layer")
	portActive = newMetric("goverbs_port_active", "1 if the port is ACTIVE, 0 otherwise.", gauge, ofPort...)
	portRate   = newMetric("goverbs_port_rate_bytes_per_second", "Link rate of a port.", gauge,
		ofPort...)
	portOther = newMetric("goverbs_port_events_total", "Port counters without a separate metric.", counter,
		"device", "port", "counter")
	hardware = newMetric("goverbs_hardware_events_total", "Driver counters of a port, under the driver's names "+
		"(hw_counters, rdma statistic).", counter, "device", "port", "counter")
	softwareWaiting = newMetric("goverbs_software_receive_queue_bytes", "Socket memory of packets that a software "+
		"device has not read yet.", gauge, "address", "process")
	softwareDrops = newMetric("goverbs_software_dropped_packets_total", "Packets dropped because the socket of a "+
		"software device was full.", counter, "address", "process")
	posted = newMetric("goverbs_process_posted_requests_total", "Work requests posted to checked queues: "+
		"send, receive, shared_receive.", counter, append(ofProcess[:3:3], "queue")...)
	completed = newMetric("goverbs_process_completed_requests_total",
		"Posted work requests that have completed.", counter,
		append(ofProcess[:3:3], "queue")...)
	outstanding = newMetric("goverbs_process_outstanding_requests",
		"Posted work requests that have not completed.", gauge,
		append(ofProcess[:3:3], "queue")...)
	slots = newMetric("goverbs_process_queue_slots", "Capacity of a program's checked queues.", gauge,
		append(ofProcess[:3:3], "queue")...)
	queues = newMetric("goverbs_process_queues", "Queues of a program, by whether they are counted (checked).",
		gauge, append(ofProcess[:3:3], "queue", "counted")...)
	softwareObjects = newMetric("goverbs_process_software_objects", "Objects of a program on a software device, by "+
		"kind.", gauge, append(ofProcess[:3:3], "kind")...)
	softwareBytes = newMetric("goverbs_process_software_memory_region_bytes",
		"Total size of a program's memory regions on a software device.", gauge, ofProcess...)
	softwareEvents = newMetric("goverbs_process_software_events_total", "Counters of a program's software devices "+
		"(docs/wire.md).", counter, append(ofProcess[:3:3], "counter")...)
	leases = newMetric("goverbs_process_cache_leases_total", "Leases from a program's registration caches: of "+
		"registered memory (hit) or new registrations (miss).", counter, "process", "pid", "result")
	dropped = newMetric("goverbs_process_cache_dropped_regions_total", "Regions evicted from caches: for a limit, or "+
		"because the memory was unmapped.", counter, "process", "pid", "reason")
	cached      = newMetric("goverbs_process_cache_regions", "Regions in caches.", gauge, "process", "pid")
	cachedBytes = newMetric("goverbs_process_cache_bytes", "Total size of regions in caches.", gauge, "process", "pid")

	processHardware = newMetric("goverbs_process_hardware_events_total", "Hardware counters bound to the queue pairs "+
		"of a program (rdma statistic qp).", counter,
		append(ofProcess[:3:3], "port", "counter")...)

	notes = newMetric("goverbs_exporter_notes", "Number of reasons for missing data; goverbs top prints them.", gauge)
	took  = newMetric("goverbs_exporter_read_seconds", "Time spent reading these metrics from the kernel.", gauge)
	info  = newMetric("goverbs_exporter_info", "Version of the exporter; always 1.", gauge, "version", "go")
)

// portCounters are the performance management counters of InfiniBand ports. Kernels count data in units of four bytes.
var portCounters = []*metric{
	portCounter("port_rcv_data", "received_bytes", 4, "Bytes received."),
	portCounter("port_xmit_data", "transmitted_bytes", 4, "Bytes transmitted."),
	portCounter("port_rcv_packets", "received_packets", 1, "Packets received, including errors."),
	portCounter("port_xmit_packets", "transmitted_packets", 1, "Packets transmitted, including errors."),
	portCounter("unicast_rcv_packets", "unicast_received_packets", 1, "Unicast packets received."),
	portCounter("unicast_xmit_packets", "unicast_transmitted_packets", 1, "Unicast packets transmitted."),
	portCounter("multicast_rcv_packets", "multicast_received_packets", 1, "Multicast packets received."),
	portCounter("multicast_xmit_packets", "multicast_transmitted_packets", 1, "Multicast packets transmitted."),
	portCounter("port_rcv_errors", "receive_errors", 1, "Packets received with an error."),
	portCounter("port_rcv_remote_physical_errors", "receive_remote_physical_errors", 1,
		"Packets received that were marked bad upstream."),
	portCounter("port_rcv_switch_relay_errors", "receive_switch_relay_errors", 1,
		"Packets received that a switch could not forward."),
	portCounter("port_rcv_constraint_errors", "receive_constraint_errors", 1,
		"Packets received and dropped by partition or filter checks."),
	portCounter("port_xmit_discards", "transmit_discards", 1,
		"Outbound packets dropped because the port was down or congested."),
	portCounter("port_xmit_constraint_errors", "transmit_constraint_errors", 1,
		"Outbound packets dropped by partition or filter checks."),
	portCounter("port_xmit_wait", "transmit_wait_ticks", 1,
		"Port clock ticks with data to send but no credit."),
	portCounter("symbol_error", "symbol_errors", 1, "Minor link errors."),
	portCounter("link_error_recovery", "link_error_recoveries", 1, "Successful link error recoveries."),
	portCounter("link_downed", "link_downed", 1, "Failed link error recoveries, after which the link went down."),
	portCounter("local_link_integrity_errors", "local_link_integrity_errors", 1,
		"Times that local link errors exceeded the threshold."),
	portCounter("excessive_buffer_overrun_errors", "excessive_buffer_overrun_errors", 1,
		"Consecutive buffer overruns."),
	portCounter("VL15_dropped", "vl15_dropped_packets", 1, "Management packets dropped for lack of buffers."),
}

// families lists all families.
var families = append([]*metric{deviceInfo, deviceObjects, deviceHidden, processObjects, processBytes, portInfo,
	portActive, portRate, portOther, hardware, softwareWaiting, softwareDrops, posted,
	completed, outstanding, slots, queues, softwareObjects, softwareBytes, softwareEvents, leases, dropped, cached,
	cachedBytes, processHardware, notes, took, info}, portCounters...)
