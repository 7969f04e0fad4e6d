package main

import "slices"

// mutant is a fault and, where it takes away the guard against an attack, what carries the attack out: the attack succeeds
// with it, and so the test fails. The name of such a fault is the attack's, as internal/hostile records it.
type mutant struct {
	fault
	// pkg and run are the package and the tests (TestHostile…) of the attack: they alone are run. Of a fault without them
	// all of tests are.
	pkg, run string
}

// all are the faults of policy and those of the guards against attacks.
func all() []mutant {
	var out []mutant
	for _, f := range faults {
		out = append(out, mutant{fault: f})
	}
	return slices.Concat(out, attacksFrontends, attacksServers, attacksLockout, attacksSources, attacksTunnel, attacksBudget, attacksPorts, attacksTables,
		attacksNodes, attacksAdmission, attacksAgent, attacksPods, attacksPeers)
}
