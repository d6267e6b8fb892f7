"""Reports about runs: reports that are kept, the page, lineage. Nothing here touches a table or needs Spark.

Read in this order: `report_files` (what lies in a reports folder) · `report_history` (many reports as one value) ·
`report_page`, drawn with `page_plots`, `page_graph` and `page_style` · `lineage` (OpenLineage events) ·
`failure_words` (why a table failed).
"""
