// SPDX-License-Identifier: BSD-2-Clause

// Package exporting declares the subcommand of goverbs that the program goverbs-exporter carries out. That one has a
// server of HTTP and the library of Prometheus, which are half as large as all the rest.
package exporting

// Exporter has metrics for Prometheus.
type Exporter struct {
	Listen    string `default:"127.0.0.1:9479" help:"Address of the server, HOST:PORT; :9479 is all of this host."`
	Once      bool   `short:"1" help:"Print the metrics, and end: a file for node_exporter's textfile collector."`
	By        string `enum:"name,pid,none" default:"name" help:"Tell processes apart by name, by name and PID, or not."`
	Stats     string `placeholder:"DIR" env:"GOVERBS_STATS" help:"Ask programs started with GOVERBS_STATS=DIR."`
	Processes int    `default:"50" help:"Most processes of a device; what the smaller ones have is added up."`
}

// Program is the name of the program that carries it out.
const Program = "goverbs-exporter"
