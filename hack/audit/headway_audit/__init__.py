"""What the locks bring in: known vulnerabilities, licences, and a bill of materials for each image."""
