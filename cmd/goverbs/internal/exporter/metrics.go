// SPDX-License-Identifier: BSD-2-Clause

// Package exporter exports port counters and RDMA objects of programs as Prometheus metrics. A [Collector] reads a
// host; [Serve] serves it over HTTP.
package exporter

var (
	ofPort    = []string{"device", "port"}
	ofProcess = []string{"device", "process", "pid"}
)

// portCounter returns a family for a file in the counters directory of a port.
func portCounter(file, name string, factor float64, help string) *Metric {
	m := NewMetric("goverbs_port_"+name+"_total", help, Counter, ofPort...)
	m.file, m.factor = file, factor
	return m
}

// Families other than port counters.
var (
	deviceInfo = NewMetric("goverbs_device_info", "Information about a device; always 1.", Gauge, "device", "driver",
		"firmware", "board", "node_guid")
	deviceObjects = NewMetric("goverbs_device_objects", "Objects of all programs and the kernel on a device, by "+
		"kind: qp, mr, cq, pd, cm_id, srq, ctx.", Gauge, "device", "kind")
	deviceHidden = NewMetric("goverbs_device_hidden_objects", "Objects that the kernel did not list because they "+
		"belong to other PID namespaces.", Gauge, "device", "kind")
	processObjects = NewMetric("goverbs_process_objects", "Objects of a program on a device, by kind.", Gauge,
		append(ofProcess[:3:3], "kind")...)
	processBytes = NewMetric("goverbs_process_memory_region_bytes", "Total size of a program's memory regions.", Gauge,
		ofProcess...)
	portInfo = NewMetric("goverbs_port_info", "State of a port and its link; always 1.", Gauge, "device", "port",
		"state", "physical_state", "link_layer")
	portActive = NewMetric("goverbs_port_active", "1 if the port is ACTIVE, 0 otherwise.", Gauge, ofPort...)
	portRate   = NewMetric("goverbs_port_rate_bytes_per_second", "Link rate of a port.", Gauge,
		ofPort...)
	portOther = NewMetric("goverbs_port_events_total", "Port counters without a separate metric.", Counter,
		"device", "port", "counter")
	hardware = NewMetric("goverbs_hardware_events_total", "Driver counters of a port, under the driver's names "+
		"(hw_counters, rdma statistic).", Counter, "device", "port", "counter")
	softwareWaiting = NewMetric("goverbs_software_receive_queue_bytes", "Socket memory of packets that a software "+
		"device has not read yet.", Gauge, "address", "process")
	softwareDrops = NewMetric("goverbs_software_dropped_packets_total", "Packets dropped because the socket of a "+
		"software device was full.", Counter, "address", "process")
	posted = NewMetric("goverbs_process_posted_requests_total", "Work requests posted to checked queues: "+
		"send, receive, shared_receive.", Counter, append(ofProcess[:3:3], "queue")...)
	completed = NewMetric("goverbs_process_completed_requests_total",
		"Posted work requests that have completed.", Counter,
		append(ofProcess[:3:3], "queue")...)
	outstanding = NewMetric("goverbs_process_outstanding_requests",
		"Posted work requests that have not completed.", Gauge,
		append(ofProcess[:3:3], "queue")...)
	slots = NewMetric("goverbs_process_queue_slots", "Capacity of a program's checked queues.", Gauge,
		append(ofProcess[:3:3], "queue")...)
	queues = NewMetric("goverbs_process_queues", "Queues of a program, by whether they are counted (checked).",
		Gauge, append(ofProcess[:3:3], "queue", "counted")...)
	softwareObjects = NewMetric("goverbs_process_software_objects", "Objects of a program on a software device, by "+
		"kind.", Gauge, append(ofProcess[:3:3], "kind")...)
	softwareBytes = NewMetric("goverbs_process_software_memory_region_bytes",
		"Total size of a program's memory regions on a software device.", Gauge, ofProcess...)
	softwareEvents = NewMetric("goverbs_process_software_events_total", "Counters of a program's software devices "+
		"(docs/wire.md).", Counter, append(ofProcess[:3:3], "counter")...)
	leases = NewMetric("goverbs_process_cache_leases_total", "Leases from a program's registration caches: of "+
		"registered memory (hit) or new registrations (miss).", Counter, "process", "pid", "result")
	dropped = NewMetric("goverbs_process_cache_dropped_regions_total", "Regions evicted from caches: for a limit, or "+
		"because the memory was unmapped.", Counter, "process", "pid", "reason")
	cached      = NewMetric("goverbs_process_cache_regions", "Regions in caches.", Gauge, "process", "pid")
	cachedBytes = NewMetric("goverbs_process_cache_bytes", "Total size of regions in caches.", Gauge, "process", "pid")

	processHardware = NewMetric("goverbs_process_hardware_events_total", "Hardware counters bound to the queue pairs "+
		"of a program (rdma statistic qp).", Counter,
		append(ofProcess[:3:3], "port", "counter")...)

	notes = NewMetric("goverbs_exporter_notes", "Number of reasons for missing data; goverbs top prints them.", Gauge)
	took  = NewMetric("goverbs_exporter_read_seconds", "Time spent reading these metrics from the kernel.", Gauge)
	info  = NewMetric("goverbs_exporter_info", "Version of the exporter; always 1.", Gauge, "version", "go")
)

// portCounters are the performance management counters of InfiniBand ports. Kernels count data in units of four bytes.
var portCounters = []*Metric{
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
var families = append([]*Metric{deviceInfo, deviceObjects, deviceHidden, processObjects, processBytes, portInfo,
	portActive, portRate, portOther, hardware, softwareWaiting, softwareDrops, posted,
	completed, outstanding, slots, queues, softwareObjects, softwareBytes, softwareEvents, leases, dropped, cached,
	cachedBytes, processHardware, notes, took, info}, portCounters...)
