package main

// attacksTables are the guards of tables of the kernel that all pods of a node share.
var attacksTables = []mutant{
	{fault{"a pod fills a node's connection tracking with connections of its own", "internal/dataplane/nft/connshare.go",
		"func (p podConnections) shares(most int) map[netip.Addr]string {\n", "func (p podConnections) shares(most int) map[netip.Addr]string {\n	return nil\n"},
		"./test/netns", "^TestHostileConnections$"},
	{fault{"eight pods together fill a node's connection tracking", "internal/dataplane/nft/passage.go",
		`		"ct status and confirmed == 0 jump "+podBeginsChain,`, `		"ct status and confirmed != 0 jump "+podBeginsChain,`},
		"./test/netns", "^TestHostileConnectionsTogether$"},
}
