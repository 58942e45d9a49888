// Package soak runs transactions and observers on a Bigtable service while their clients fail,
// and checks what they saw. It also measures transactions against raw requests on that
// service. It is the second stage of `percctl conformance`: package conformance tests single
// requests, and this package tests all of them together.
//
// The faults are on the client's side: requests are lost, late or doubled, clients die or
// stand still. So the package works with every service, and harms none. It makes three
// tables, and removes them again.
package soak
